"""Conversations to ids, once, kept as `prepare_labelled` keeps texts: which tokens are an answer's stands beside them.

What a conversation is as a text is a chat template's to say; answers are the tokens that a model would have generated
(`ChatTemplate.encode_conversation`).
"""

import json
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.progress import Progress

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.cache import (
    FORMAT,
    check_hash,
    create_atomically,
    digest,
    id_dtype,
    is_complete,
    load_or_train_tokenizer,
    memory_map,
    progress_bar,
    report_disk_errors,
    write_meta,
)
from tercet.data.corpora.text_split import Side, TextSplit
from tercet.data.examples.conversations import (
    COLUMNS,
    Conversation,
    ConversationFile,
    find_conversations,
    no_answer_error,
)
from tercet.data.sources.files import find_path
from tercet.data.specs import ConversationsSpec, HeldOut
from tercet.limits import MOST_TEMPLATE_BYTES
from tercet.reading.files import read_text_file
from tercet.tokens import BPE, Characters, Tokenizer, Unigram, Words
from tercet.tokens.chat_template import ChatTemplate, plain_template


@dataclass(frozen=True, kw_only=True)
class Conversations:
    """Tokenised conversations, memory-mapped.

    Attributes:
        ids: (M,) ids, one conversation after another.
        answers: (M,) bool, True at the tokens of answers, those that end them included.
        starts: (N + 1,) int64 position at which each conversation starts, and the end.
        first_answers: (N,) int64 tokens before the first that is to be predicted; all where there is none.
    """

    ids: np.ndarray
    answers: np.ndarray
    starts: np.ndarray
    first_answers: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64 tokens of each conversation."""
        return np.diff(self.starts)

    def learnable(self, max_len: int) -> np.ndarray:
        """The numbers of those with something to learn within `max_len` inputs."""
        return np.flatnonzero((self.first_answers <= max_len) & (self.first_answers < self.lengths))


@dataclass(frozen=True, kw_only=True)
class ConversationCorpus:
    """Tokenised conversations in two parts.

    Attributes:
        hash: sha256 of the conversations and the template that the ids were made from.
        template: the chat template.
        is_plain: whether it is the packaged one, in the place of one that the model does not have.
        skipped: conversations without an answer.
        near_duplicates: Validation conversations whose prompt is a near duplicate of one in training.
    """

    name: str
    hash: str
    tokenizer: Tokenizer
    template: str
    is_plain: bool
    train: Conversations
    validation: Conversations
    skipped: int
    near_duplicates: int


def prepare_conversations(
    spec: ConversationsSpec,
    *,
    tokenizer: Tokenizer | None = None,
    template: str | None = None,
    expected_hash: str | None = None,
    progress: bool = False,
) -> ConversationCorpus:
    """The corpus that `spec` describes, from the cache where it is there.

    Args:
        tokenizer, template: take the place of the spec's, as those of a pretrained model do.
        expected_hash: Hash that the data must have. Given a `tokenizer`, it is compared before any text is tokenized,
            printed or cached.
        progress: show a bar on stderr, where that is a terminal.

    Raises:
        ChangedData: If the data does not have the expected hash.
        UserError: where conversations cannot be read, rendered, tokenised or divided, or the cache cannot be written.
    """
    if template is None and spec.chat_template is not None:
        template = read_text_file(find_path(spec.chat_template), MOST_TEMPLATE_BYTES)
    split = _ConversationSplit(spec)
    with report_disk_errors():
        tokenizer = tokenizer or split.learn_tokenizer()
        is_plain = template is None
        template = plain_template(tokenizer) if template is None else template
        content = digest(split.content_hash, template)
        check_hash(spec.source, content, expected_hash)
        # "weights" and "spaces": ids that were cached before weights and a chat's spaces were read have other keys
        key = digest(FORMAT, content, tokenizer.hash, sys.byteorder, "weights", "spaces")
        folder = cache_dir() / "conversations" / key[:32]
        if not is_complete(folder):
            chat = ChatTemplate(template, tokenizer)
            split.read_through()
            with create_atomically(folder, split.snapshots) as new, progress_bar(shown=progress) as bar:
                _write(new, split, tokenizer, chat, bar)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    return ConversationCorpus(
        name=spec.source, hash=content, tokenizer=tokenizer, template=template, is_plain=is_plain,
        train=_load(folder, "train", tokenizer), validation=_load(folder, "validation", tokenizer),
        skipped=meta["skipped"], near_duplicates=meta.get("near_duplicates", 0),  # of an older version: not counted
    )  # fmt: skip


class _ConversationSplit(TextSplit[ConversationFile, Conversation]):
    singular, plural = "prompt", "conversations"

    def __init__(self, spec: ConversationsSpec) -> None:
        self.spec = spec
        held_out = find_conversations(spec, spec.validation.source) if isinstance(spec.validation, HeldOut) else None
        names = (spec.prompt_field, spec.response_field)
        settings = [spec.encoding, spec.messages_field, *(names if names != COLUMNS else ())]
        super().__init__(spec.source, find_conversations(spec), held_out, validation=spec.validation, settings=settings)

    def learn_tokenizer(self) -> Tokenizer:
        """A tokenizer learnt on the training part."""

        def texts() -> Iterator[str]:
            self.read_through()
            return (text for conversation in self.items("train") for text in conversation.texts())

        spec = self.spec.tokenizer
        if isinstance(spec, Characters | Words | BPE | Unigram):
            spec = replace(spec, eos=True)
        return load_or_train_tokenizer(spec, texts, self.training_hash, self.snapshots[:1])

    def _read_all(self, source: ConversationFile) -> Iterator[Conversation]:
        return source.conversations()

    def _read(self, source: ConversationFile) -> Iterator[Conversation]:
        return (conversation for conversation in source.conversations() if conversation.has_answer)

    def _is_empty(self, item: Conversation) -> bool:
        return not item.has_answer

    def _key(self, item: Conversation) -> str:
        return item.prompt

    def _no_text_error(self, source: ConversationFile) -> UserError:
        return no_answer_error(source)


def _write(folder: Path, split: _ConversationSplit, tokenizer: Tokenizer, chat: ChatTemplate, bar: Progress) -> None:
    task = bar.add_task("tokenising conversations", total=split.size)
    for part in ("train", "validation"):
        ends, first_answers = array("q", [0]), array("q")
        with (folder / f"{part}_ids.bin").open("wb") as ids_file, (folder / f"{part}_answers.bin").open("wb") as marks:
            for conversation in split.items_to_write(part):
                try:
                    ids, answers = chat.encode_conversation(conversation.messages)
                except UserError as error:
                    raise UserError(f"{conversation.location}: {error}") from None
                ids_file.write(np.array(ids, dtype=id_dtype(tokenizer)).tobytes())
                marks.write(np.array(answers, dtype=np.bool_).tobytes())
                ends.append(ends[-1] + len(ids))
                first_answers.append(
                    next((place for place, answer in enumerate(answers) if answer and place), len(ids))
                )
                bar.advance(task, conversation.n_bytes)
        np.save(folder / f"{part}_starts.npy", np.array(ends, dtype=np.int64), allow_pickle=False)
        np.save(folder / f"{part}_first_answers.npy", np.array(first_answers, dtype=np.int64), allow_pickle=False)
    tokenizer_meta = {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "hash": tokenizer.hash}
    counts = {"skipped": split.skipped, "near_duplicates": split.near_duplicates}
    write_meta(folder, {"tokenizer": tokenizer_meta, **counts})


def _load(folder: Path, part: Side, tokenizer: Tokenizer) -> Conversations:
    return Conversations(
        ids=memory_map(folder / f"{part}_ids.bin", id_dtype(tokenizer)),
        answers=memory_map(folder / f"{part}_answers.bin", np.dtype(np.bool_)),
        starts=np.load(folder / f"{part}_starts.npy", allow_pickle=False),
        first_answers=np.load(folder / f"{part}_first_answers.npy", allow_pickle=False),
    )

"""Tokenized conversations, with a mask of the tokens to learn, built once and kept in the cache.

A chat template renders a conversation as text. The tokens to learn are those that a model would generate as answers
(see `ChatTemplate.encode_conversation`), except in answers of weight 0.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tercet.config import UserError
from tercet.data.cache import digest, id_dtype
from tercet.data.corpora.array_files import ArrayFile
from tercet.data.corpora.example_preparation import ExampleCorpus, ExamplePreparation
from tercet.data.examples.conversations import EXCHANGE_FIELDS, Conversation, find_conversations
from tercet.data.sources.files import find_path
from tercet.data.specs import ConversationsSpec, Side
from tercet.data.split_specs import HeldOut
from tercet.limits import MAX_TEMPLATE_BYTES
from tercet.reading.files import read_text_file
from tercet.tokens import Tokenizer
from tercet.tokens.chat_template import ChatTemplate, plain_template


@dataclass(frozen=True, kw_only=True)
class Conversations:
    """Tokenized conversations, memory-mapped.

    Attributes:
        ids: (M,) ids of all conversations, concatenated.
        answers: (M,) bool, True at the tokens of learned answers, including the token that ends each answer. Answers of
            weight 0 are not learned.
        starts: (N + 1,) int64 position of the start of each conversation, and of the end of the last one.
        first_answers: (N,) int64 number of tokens before the first token to learn, which is never the first of the
            conversation; the number of all tokens if there is none to learn.
    """

    ids: np.ndarray
    answers: np.ndarray
    starts: np.ndarray
    first_answers: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each conversation, (N,) int64."""
        return np.diff(self.starts)

    def learnable(self, max_len: int) -> np.ndarray:
        """Return the numbers (K,) of the conversations with a token to learn after at most `max_len` inputs."""
        return np.flatnonzero((self.first_answers <= max_len) & (self.first_answers < self.lengths))


@dataclass(frozen=True, kw_only=True)
class ConversationCorpus(ExampleCorpus[Conversations]):
    """Tokenized conversations in two parts.

    A conversation without a learned answer counts as empty. Near duplicates are found by comparing the messages before
    the first answer.

    Attributes:
        hash: sha256 of the conversations, of the settings by which they are read and split, and of the template.
        template: Chat template, as Jinja source.
        is_plain: True if the template is `plain_template`, because neither the spec nor the model has one.
    """

    template: str
    is_plain: bool


def prepare_conversations(
    spec: ConversationsSpec,
    *,
    tokenizer: Tokenizer | None = None,
    template: str | None = None,
    expected_hash: str | None = None,
    progress: bool = False,
) -> ConversationCorpus:
    """Return the corpus that `spec` describes, from the cache if it is there.

    Args:
        spec: Settings of the data.
        tokenizer, template: Tokenizer and chat template of a pretrained model, used instead of those of the spec.
        expected_hash: Hash that the data must have, or None to accept any data. If `tokenizer` is passed, the hash is
            compared before any text is tokenized, printed or cached.
        progress: If True, show a bar on stderr, if that is a terminal.

    Raises:
        ChangedData: If the data does not have the expected hash.
        UserError: If conversations cannot be read, rendered, tokenized or divided, or the cache cannot be written.
    """
    if template is None and spec.chat_template is not None:
        template = read_text_file(find_path(spec.chat_template), MAX_TEMPLATE_BYTES)
    return ConversationPreparation(spec, tokenizer, template).prepare(expected_hash=expected_hash, progress=progress)


class ConversationPreparation(ExamplePreparation[Conversation, ConversationCorpus]):
    """Preparation of conversations."""

    folder, title, singular, plural = "conversations", "conversations", "prompt", "conversations"

    def __init__(
        self, spec: ConversationsSpec, tokenizer: Tokenizer | None = None, template: str | None = None
    ) -> None:
        self._spec, self._custom_tokenizer, self._custom_template = spec, tokenizer, template
        held_out = find_conversations(spec, spec.validation.source) if isinstance(spec.validation, HeldOut) else None
        names = (spec.prompt_field, spec.response_field)
        settings = [spec.encoding, spec.messages_field, *(names if names != EXCHANGE_FIELDS else ())]
        super().__init__(
            str(spec.source), find_conversations(spec), held_out, validation=spec.validation, settings=settings
        )

    def _choose_tokenizer(self) -> Tokenizer:
        return self._custom_tokenizer or self._learn_tokenizer(
            self._spec.tokenizer, Conversation.training_texts, ("eos",)
        )

    @property
    def content_hash(self) -> str:
        return digest(self.examples_hash, self._template)

    @cached_property
    def _template(self) -> str:
        return plain_template(self.tokenizer) if self._custom_template is None else self._custom_template

    @cached_property
    def _chat(self) -> ChatTemplate:
        return ChatTemplate(self._template, self.tokenizer)

    def _key(self) -> list[Any]:
        # "weights" and "spaces" distinguish these ids from those cached by versions that ignored weights and spaces
        return [self.content_hash, self.tokenizer.hash, sys.byteorder, "weights", "spaces"]

    def _check(self) -> None:
        _ = self._chat
        super()._check()

    def _files(self) -> list[ArrayFile]:
        return [
            ArrayFile("ids.bin", id_dtype(self.tokenizer), "starts.npy"),
            ArrayFile("answers.bin", np.dtype(np.bool_)),
            ArrayFile("first_answers.npy", np.dtype(np.int64)),
        ]

    def _encode(
        self, examples: Sequence[Conversation], side: Side, first: int
    ) -> tuple[list[Any], list[Any], list[Any]]:
        ids, answers, first_answers = list[Any](), list[Any](), list[Any]()
        for conversation in examples:
            try:
                tokens, marks = self._chat.encode_conversation(conversation.messages)
            except UserError as error:
                raise UserError(f"{conversation.location}: {error}") from None
            ids.append(tokens)
            answers.append(marks)
            first_answers.append([next((place for place, mark in enumerate(marks) if mark and place), len(tokens))])
        return ids, answers, first_answers

    def _load(self, folder: Path, meta: dict[str, Any]) -> ConversationCorpus:
        fields = self._fields(folder, meta, Conversations)
        return ConversationCorpus(**fields, template=self._template, is_plain=self._custom_template is None)

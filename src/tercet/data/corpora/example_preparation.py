"""Preparation of examples: pairs, labeled texts or conversations, in a training and a validation part.

The validation part is drawn from the source of the training part, or comes from another source. Examples are read
again each time they are needed, so that only a few are in memory.
"""

import sys
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from rich.progress import Progress

from tercet.config import UserError, to_plain
from tercet.data.cache import FORMAT, chunk_items, digest
from tercet.data.corpora.array_files import ArrayFile, ArrayWriter, open_arrays
from tercet.data.corpora.folds import find_fold
from tercet.data.corpora.preparation import CorpusType, Preparation, describe_tokenizer
from tercet.data.encode.learn_tokenizer import learn_tokenizer
from tercet.data.examples.example_source import ExampleSource, ExampleType, no_example_error, read_examples
from tercet.data.min_hash import MinHash, find_clusters
from tercet.data.specs import SIDES, Side
from tercet.data.split_specs import ExampleClusters, ExampleSplit, Fold, RandomSplit
from tercet.data.text_hashes import (
    count_near_duplicates,
    draw_groups,
    draw_validation,
    hash_near_duplicate,
    hash_text,
)
from tercet.tokens import GPT2, CustomTokenizer, Tokenizer, TokenizerFile, TokenizerSpec, WordPiece

Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True)
class ExampleCorpus(Generic[Part]):
    """Tokenized examples in two parts.

    Attributes:
        hash: sha256 of the data that the ids were made from, and of the settings by which it is read and split.
        skipped: Number of examples, in both parts, that were left out because they are empty.
        near_duplicates: Number of validation examples that are near duplicates of training examples.
    """

    name: str
    hash: str
    tokenizer: Tokenizer
    train: Part
    validation: Part
    skipped: int
    near_duplicates: int


class DividedText(NamedTuple):
    """Text by which similar examples are found.

    Attributes:
        text: The text.
        identity: Text that must not be in both parts, such as the group of the example.
        side: Part of the example.
    """

    text: str
    identity: str
    side: Side


class ExamplePreparation(Preparation[CorpusType], Generic[ExampleType, CorpusType]):
    """Preparation of one kind of examples.

    Attributes:
        title: Name of the examples in the progress bar and in messages about the tokenizer.
        singular, plural: Names of one and several examples in the message about examples that are all equal.
        training_hash: sha256 of everything that the examples of the training part depend on.
        examples_hash: sha256 of everything that the examples of both parts depend on.
    """

    title: str
    singular: str
    plural: str

    def __init__(
        self,
        name: str,
        train: ExampleSource[ExampleType],
        held_out: ExampleSource[ExampleType] | None,
        *,
        validation: object,
        settings: object,
    ) -> None:
        """Hash the sources.

        Args:
            name: Name of the data in messages.
            train: Source of the training part.
            held_out: Separate source of the validation part, or None to draw it from `train`.
            validation: Spec of the validation part. If it is an `ExampleSplit`, `train` is divided as it specifies.
            settings: Other settings that the examples depend on, as JSON values.
        """
        super().__init__(name, [source for source in (train, held_out) if source])
        self._train, self._held_out = train, held_out
        default = None if held_out else RandomSplit()
        self._split = validation if isinstance(validation, ExampleSplit) else default
        # The vocabulary must not be learned from validation examples, so the split is part of the hash.
        self.training_hash = digest(FORMAT, self.snapshots[0].hash, settings, to_plain(self._split))
        self.examples_hash = digest(self.training_hash, self.snapshots[1].hash if held_out else None)

    @property
    def content_hash(self) -> str:
        return self.examples_hash

    @abstractmethod
    def _files(self) -> Sequence[ArrayFile]:
        """Return the files of each part."""

    @abstractmethod
    def _encode(self, examples: Sequence[ExampleType], side: Side, first: int) -> Sequence[Sequence[Any]]:
        """Return, for each file in `_files`, one array per example; `first` is the number, from 1, of the first one."""

    def examples(self, side: Side) -> Iterator[ExampleType]:
        """Yield the examples of a part that are not empty.

        Raises:
            UserError: If the source cannot be read or divided, or all of its examples are empty.
        """
        if self._held_out:
            yield from read_examples(self._train if side == "train" else self._held_out)
            return
        _, validation_hashes = self._survey
        for example in read_examples(self._train):
            if (hash_text(example.identity) in validation_hashes) == (side == "validation"):
                yield example

    @property
    def split_kind(self) -> str:
        """Kind of the validation part: "drawn", "similarity" or "held_out"."""
        return "held_out" if self._split is None else self._split.kind

    def divided_texts(self) -> Iterator[DividedText]:
        """Yield the text of each example that is not empty, first those of the training part.

        Raises:
            UserError: As `examples` does.
        """
        for side in SIDES:
            for example in self.examples(side):
                yield DividedText(self._find_duplicate_text(example), example.identity, side)

    def _find_duplicate_text(self, example: ExampleType) -> str:
        """Return the text by which near duplicates of an example are found."""
        return example.identity

    def _labels_to_spread(self, example: ExampleType) -> tuple[str, ...]:
        """Return the labels of an example that are spread evenly over the folds of cross-validation."""
        return ()

    def _key(self) -> list[Any]:
        return [self.content_hash, self.tokenizer.hash, sys.byteorder]

    def _check(self) -> None:
        self._read_through()

    def _read_through(self) -> None:
        """Read all examples, so that errors in them are reported before anything is written."""
        _ = self._survey

    @cached_property
    def _survey(self) -> tuple[int, frozenset[int]]:
        """Number of empty examples, and the hashes of the examples that are drawn for validation.

        There are no hashes if the validation part has a separate source.

        Raises:
            UserError: If all examples of a source are empty, all examples to divide are equal, or there are fewer
                distinct ones than folds.
        """
        skipped, split = 0, self._split
        hashes = array("Q")  # eight bytes per example
        labels = list[tuple[str, ...]]()
        min_hash = MinHash(split.shingle) if isinstance(split, ExampleClusters) else None
        for source in (self._train, self._held_out) if self._held_out else (self._train,):
            complete = 0
            for example in source.examples():
                if example.is_empty:
                    skipped += 1
                    continue
                complete += 1
                if split:
                    hashes.append(hash_text(example.identity))
                if isinstance(split, Fold):
                    labels.append(self._labels_to_spread(example))
                if min_hash is not None:
                    min_hash.add(self._find_duplicate_text(example))
            if not complete:
                raise no_example_error(source)
        return skipped, self._draw(hashes, labels, min_hash)

    def _draw(
        self, hashes: "array[int]", labels: Sequence[tuple[str, ...]], min_hash: MinHash | None
    ) -> frozenset[int]:
        """Return the hashes of the examples that are drawn for validation, as `_survey`."""
        add_examples = f"add {self.plural}"
        remedy = f"set data.validation to {{kind: held_out, source: ...}}, or {add_examples}"
        match self._split:
            case RandomSplit(count=count):
                one_example_error = f"{self.name} has only one {self.singular}, which cannot be divided; {remedy}"
                return draw_validation(hashes, count, one_example_error)
            case ExampleClusters() as split:
                assert min_hash is not None
                drawn = draw_clusters(split, np.array(hashes, dtype=np.uint64), min_hash.signatures())
                if drawn is None:
                    raise UserError(
                        f"{self.name} has only one cluster of similar {self.plural}, which cannot be divided; {remedy}"
                    )
                return drawn
            case Fold() as split:
                return find_fold(hashes, split, labels, name=self.name, plural=self.plural, remedy=add_examples)
            case None:
                return frozenset()

    def _learn_tokenizer(
        self, spec: TokenizerSpec, texts: Callable[[ExampleType], Iterable[str]], roles: Sequence[str], *key: object
    ) -> Tokenizer:
        """Return the tokenizer that is learned from the training part.

        Args:
            spec: Settings of the tokenizer.
            texts: Function that returns the texts of an example to learn from.
            roles: Special tokens to add, such as "pad". The kinds gpt2, file and wordpiece and the tokenizers of other
                packages, which have fixed ones, are not changed.
            key: Values that the result of `texts` depends on, in addition to the examples.
        """

        def training_texts() -> Iterator[str]:
            self._read_through()
            return chain.from_iterable(texts(example) for example in self.examples("train"))

        if not isinstance(spec, GPT2 | TokenizerFile | WordPiece | CustomTokenizer):
            spec = replace(spec, **dict.fromkeys(roles, True))
        content = digest(self.training_hash, *key) if key else self.training_hash
        return learn_tokenizer(spec, training_texts, content, self.snapshots[:1])

    def _encoder_tokenizer(
        self, custom: Tokenizer | None, spec: TokenizerSpec, texts: Callable[[ExampleType], Iterable[str]]
    ) -> Tokenizer:
        """Return `custom`, or the tokenizer that is learned from the training part; both with bos and eos.

        Raises:
            UserError: If the tokenizer has no bos or no eos.
        """
        tokenizer = custom or self._learn_tokenizer(spec, texts, ("pad", "bos", "eos"))
        self._check_special_tokens(tokenizer, "tokenizer", ("bos", "eos"))
        return tokenizer

    def _check_special_tokens(self, tokenizer: Tokenizer, setting: str, roles: Sequence[str]) -> None:
        """Raise UserError if the tokenizer set by `data.<setting>` lacks one of `roles`, such as "bos"."""
        if missing := [role for role in roles if getattr(tokenizer, f"{role}_id") is None]:
            raise UserError(
                f"data.{setting} ({tokenizer.kind}) has no {' and no '.join(missing)} token, required for {self.title};"
                " use the kind wordpiece, bpe, unigram, words or characters, which add them"
            )

    def _write(self, folder: Path, bar: Progress) -> dict[str, Any]:
        sizes = [source.size() for source in (self._train, self._held_out) if source]
        task = bar.add_task(f"tokenizing {self.title}", total=None if None in sizes else sum(filter(None, sizes)))
        near_hashes: dict[Side, array[int]] = {}
        for side in SIDES:
            writer = ArrayWriter(folder, side, self._files())
            hashes = near_hashes[side] = array("Q")  # eight bytes per example
            for examples in chunk_items(self.examples(side), lambda example: sum(map(len, example.texts))):
                writer.append(self._encode(examples, side, len(hashes) + 1))
                hashes.extend(hash_near_duplicate(self._find_duplicate_text(example)) for example in examples)
                bar.advance(task, sum(len(text.encode()) for example in examples for text in example.texts))
            writer.finish()
        return {
            "tokenizer": describe_tokenizer(self.tokenizer),
            "skipped": self._survey[0],
            "near_duplicates": count_near_duplicates(near_hashes["validation"], near_hashes["train"]),
        }

    def _fields(self, folder: Path, meta: dict[str, Any], make_part: Callable[..., Any]) -> dict[str, Any]:
        """Return the fields of an `ExampleCorpus`; `make_part` builds a part from the arrays in `_files`."""
        return {
            "name": self.name,
            "hash": self.content_hash,
            "tokenizer": self.tokenizer,
            **{side: make_part(**open_arrays(folder, side, self._files())) for side in SIDES},
            "skipped": meta["skipped"],
            "near_duplicates": meta.get("near_duplicates", 0),  # missing in older caches
        }


def draw_clusters(split: ExampleClusters, hashes: np.ndarray, signatures: np.ndarray) -> frozenset[int] | None:
    """Return the hashes of the examples in the clusters that are drawn for validation; None if there is one cluster.

    Args:
        split: Settings of the split.
        hashes: (N,) uint64 hash of the identity of each example. Those with equal hashes are in the same cluster.
        signatures: (N, HASHES) signatures of `MinHash`.
    """
    clusters = find_clusters(signatures, split.threshold, hashes)
    is_drawn = draw_groups(clusters, max(1, min(split.count, len(hashes) // 10)))
    return None if is_drawn is None else frozenset(hashes[is_drawn].tolist())

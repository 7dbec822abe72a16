"""Texts in a training and a validation part: validation is drawn from the training texts, or is a source of its own.

The texts are read again each time they are asked for, so that no more than a few are in memory.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Generic, Literal, TypeVar

from tercet.config import UserError, to_plain
from tercet.data.cache import FORMAT, Snapshot, TextSource, digest
from tercet.data.specs import Drawn
from tercet.data.text_hashes import count_near, draw_validation, hash_near, hash_text
from tercet.tokens import Tokenizer

Side = Literal["train", "validation"]


SourceType = TypeVar("SourceType", bound=TextSource)
Item = TypeVar("Item")


class TextSplit(ABC, Generic[SourceType, Item]):
    """The items of a data spec, such as pairs or labelled texts, in two parts.

    Attributes:
        content_hash: sha256 of all that the items and their division depend on.
        training_hash: the same of the training part alone.
        snapshots: of the sources, that of the training part first.
    """

    singular: str  # what may not be the only one, and what there should be more of, in messages
    plural: str

    def __init__(
        self, name: str, train: SourceType, held_out: SourceType | None, *, validation: object, settings: object
    ) -> None:
        """`validation` is the spec of that part, and `settings` all settings on which the items of a source depend."""
        self._name, self._train, self._held_out = name, train, held_out
        self._drawn = validation if isinstance(validation, Drawn) else None if held_out else Drawn()
        # What validation is drawn from training is gone from what a vocabulary is learnt on.
        self.snapshots = [Snapshot(source) for source in (train, held_out) if source]
        self.training_hash = digest(FORMAT, self.snapshots[0].hash, settings, to_plain(self._drawn))
        self.content_hash = digest(self.training_hash, self.snapshots[1].hash if held_out else None)
        self._near_hashes: dict[Side, array[int]] = {}

    @abstractmethod
    def _read_all(self, source: SourceType) -> Iterator[Item]: ...

    @abstractmethod
    def _read(self, source: SourceType) -> Iterator[Item]:
        """Every item that has text; UserError where there is none."""

    @abstractmethod
    def _is_empty(self, item: Item) -> bool: ...

    @abstractmethod
    def _key(self, item: Item) -> str:
        """What is equal where two items must not be in different parts."""

    @abstractmethod
    def _no_text_error(self, source: SourceType) -> UserError: ...

    @property
    def size(self) -> int | None:
        """Bytes of text in all, where that can be told without reading."""
        sizes = [source.size() for source in (self._train, self._held_out) if source]
        return None if None in sizes else sum(size for size in sizes if size)

    @property
    def skipped(self) -> int:
        """Items without text."""
        return self._survey[0]

    def read_through(self) -> None:
        """So that what is wrong with the files is told before anything is made of them."""
        _ = self._survey

    def items(self, side: Side) -> Iterator[Item]:
        """The items of a part that have text."""
        if self._held_out:
            yield from self._read(self._train if side == "train" else self._held_out)
            return
        _, drawn = self._survey
        for item in self._read(self._train):
            if (hash_text(self._key(item)) in drawn) == (side == "validation"):
                yield item

    def items_to_write(self, side: Side) -> Iterator[Item]:
        """Yield the items of a part as `items` does, and note what `near_duplicates` compares."""
        hashes = self._near_hashes[side] = array("Q")  # eight bytes an item
        for item in self.items(side):
            hashes.append(hash_near(self._key(item)))
            yield item

    @property
    def near_duplicates(self) -> int:
        """Validation items that are near duplicates of training items, after both parts were written."""
        return count_near(self._near_hashes["validation"], self._near_hashes["train"])

    @cached_property
    def _survey(self) -> tuple[int, frozenset[int]]:
        """How many items have no text, and the hashes of those that are drawn for validation.

        Raises:
            UserError: where a part has no text, or all of it is the same.
        """
        skipped = 0
        hashes = array("Q")  # eight bytes an item
        for source in (self._train, self._held_out):
            complete = 0
            for item in self._read_all(source) if source else ():
                if self._is_empty(item):
                    skipped += 1
                    continue
                complete += 1
                if self._drawn:
                    hashes.append(hash_text(self._key(item)))
            if source and not complete:
                raise self._no_text_error(source)
        if not self._drawn:
            return skipped, frozenset()
        remedy = f"set data.validation to {{kind: held_out, source: ...}}, or give more {self.plural}"
        undivided = f"{self._name} has one {self.singular} alone, which cannot be divided; {remedy}"
        return skipped, draw_validation(hashes, self._drawn.count, undivided)


def check_special_tokens(tokenizer: Tokenizer, setting: str, purpose: str, roles: Sequence[str]) -> None:
    """Raises UserError where the tokenizer, which `data.<setting>` chose, lacks one of `roles`, such as "bos"."""
    if missing := [role for role in roles if getattr(tokenizer, f"{role}_id") is None]:
        raise UserError(
            f"data.{setting} ({tokenizer.kind}) has no {' and no '.join(missing)} token, which {purpose} need; "
            "use one of the kinds wordpiece, bpe, unigram, words and characters, which get them"
        )

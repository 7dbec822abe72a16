"""From a data spec to a corpus, once: read, learn the tokenizer, encode, write to the cache, load.

`Preparation` has the steps that all kinds of data share. A kind is a subclass. It defines what is read, what a
tokenizer learns from, which files are written, and how they become a corpus.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.progress import Progress

from tercet.cache_dir import cache_dir
from tercet.data.cache import (
    FORMAT,
    Snapshot,
    check_hash,
    create_atomically,
    digest,
    is_complete,
    progress_bar,
    report_disk_errors,
    write_meta,
)
from tercet.data.sources.text_source import TextSource
from tercet.tokens import Tokenizer

CorpusType = TypeVar("CorpusType")


class Preparation(ABC, Generic[CorpusType]):
    """The steps from a spec to a corpus.

    Attributes:
        folder: Folder of the cache for corpora of this kind.
        name: Name of the data in messages.
        snapshots: The sources as they were hashed, that of the training part first.
    """

    folder: str

    def __init__(self, name: str, sources: Iterable[TextSource]) -> None:
        self.name = name
        self.snapshots = [Snapshot(source) for source in sources]

    @property
    @abstractmethod
    def content_hash(self) -> str:
        """sha256 of everything that the corpus is made of, except for the tokenizer."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the corpus; if it has to be learned, the sources are read."""
        return self._choose_tokenizer()

    @abstractmethod
    def _choose_tokenizer(self) -> Tokenizer:
        """Return the given tokenizer, or a learned one.

        Raises:
            UserError: If the tokenizer does not suit this kind of data.
        """

    @abstractmethod
    def _key(self) -> list[Any]:
        """Return everything on which the files depend, besides their format."""

    @abstractmethod
    def _check(self) -> None:
        """Check everything that can be checked before anything is written."""

    @abstractmethod
    def _write(self, folder: Path, bar: Progress) -> dict[str, Any]:
        """Write the files and return their metadata."""

    @abstractmethod
    def _load(self, folder: Path, meta: dict[str, Any]) -> CorpusType: ...

    def prepare(self, *, expected_hash: str | None, progress: bool) -> CorpusType:
        """Return the corpus from the cache. It is made first if the cache does not have it.

        Args:
            expected_hash: Hash that the data must have, or None to accept any data.
            progress: If True, show a bar on stderr, if that is a terminal.

        Raises:
            ChangedData: If the data does not have the expected hash.
            UserError: If the data cannot be read, tokenized or divided, or the cache cannot be written.
        """
        with report_disk_errors():
            check_hash(self.name, self.content_hash, expected_hash)
            folder = cache_dir() / self.folder / digest(FORMAT, *self._key())[:32]
            if not is_complete(folder):
                self._check()
                with create_atomically(folder, self.snapshots) as new, progress_bar(enabled=progress) as bar:
                    write_meta(new, self._write(new, bar))
        return self._load(folder, json.loads((folder / "meta.json").read_text(encoding="utf-8")))


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the metadata of a corpus contains about its tokenizer."""
    return {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "hash": tokenizer.hash}

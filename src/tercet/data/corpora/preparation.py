"""Preparation of a corpus from a data spec: read texts, learn the tokenizer, encode, cache and load.

`Preparation` implements the steps that all kinds of data share. A subclass defines the examples, the texts that a
tokenizer learns from, the files that are written, and how they are loaded.
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
    """Base class of the steps from a spec to a corpus.

    Attributes:
        folder: Name of the folder in the cache for corpora of this kind.
        name: Name of the data in messages.
        snapshots: Hashes of the sources, that of the training part first.
    """

    folder: str

    def __init__(self, name: str, sources: Iterable[TextSource]) -> None:
        self.name = name
        self.snapshots = [Snapshot(source) for source in sources]

    @property
    @abstractmethod
    def content_hash(self) -> str:
        """sha256 of the data, which `prepare` compares with the expected hash."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the corpus. The sources are read if it has to be learned."""
        return self._choose_tokenizer()

    @abstractmethod
    def _choose_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of an existing model, if there is one, or a learned one.

        Raises:
            UserError: If the tokenizer does not suit this kind of data.
        """

    @abstractmethod
    def _key(self) -> list[Any]:
        """Return all values that the files depend on, except for the version of their format."""

    @abstractmethod
    def _check(self) -> None:
        """Check everything that can be checked before writing."""

    @abstractmethod
    def _write(self, folder: Path, bar: Progress) -> dict[str, Any]:
        """Write the files, show the progress in `bar`, and return the metadata of the files."""

    @abstractmethod
    def _load(self, folder: Path, meta: dict[str, Any]) -> CorpusType: ...

    def prepare(self, *, expected_hash: str | None, progress: bool) -> CorpusType:
        """Return the corpus from the cache, and build it first if the cache does not contain it.

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
    """Return the metadata that a corpus stores about its tokenizer."""
    return {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "hash": tokenizer.hash}

"""Base classes of sources of examples: examples in memory, and examples in a JSONL file or table."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic

from tercet.config import UserError
from tercet.data.examples.example_source import ExampleType
from tercet.data.sources.documents import DocumentFiles
from tercet.data.sources.files import Errors
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.tables import TABLE_SUFFIXES

SUFFIXES = (".jsonl", *TABLE_SUFFIXES)


@dataclass(frozen=True, kw_only=True)
class ExampleTexts(Generic[ExampleType]):
    """Examples in memory."""

    name: str
    items: tuple[ExampleType, ...]

    def examples(self) -> Iterator[ExampleType]:
        yield from self.items

    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.items).encode()).hexdigest()

    def size(self) -> int:
        return sum(len(text.encode()) for example in self.items for text in example.texts)


@dataclass(frozen=True, kw_only=True)
class ExampleFile:
    """A JSONL file or table of examples.

    Attributes:
        plural: Name of the examples in messages.
        line: Content of a line of a JSONL file, in messages.
        path: Path of the file.
        encoding: Encoding of the file.
        errors: As in `read_text`.
    """

    plural: ClassVar[str]
    line: ClassVar[str]
    path: Path
    encoding: str = "utf-8"
    errors: Errors = "strict"

    @property
    def name(self) -> str:
        return str(self.path)

    def hash(self) -> str:
        self._check()
        return DocumentFiles(root=self.path).hash()

    def size(self) -> int | None:
        self._check()
        return None  # unknown, because the file contains more than the texts

    def _check(self) -> None:
        """Raise UserError if there is no such file, or its suffix is not one of `SUFFIXES`."""
        if not self.path.is_file():
            DocumentFiles(root=self.path).files()  # raises with the nearest path, or lists the missing files
            raise UserError(f"{self.path} is a folder; use one file of {self.plural} ({', '.join(SUFFIXES)})")
        if uncompressed_suffix(self.path) not in SUFFIXES:
            raise UserError(
                f"{self.path} has none of the suffixes of {self.plural}, {', '.join(SUFFIXES)}; "
                f"write {self.line} on each line of a .jsonl file"
            )

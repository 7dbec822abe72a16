"""Sentence pairs as a stream: two files line by line, or one TSV, CSV or JSONL file.

Only "\\n" ends a line, as for `wc -l`: a line separator (U+2028) or a carriage return within a sentence is text.
Surrounding white space is removed.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, NamedTuple

from tercet.config import UserError
from tercet.data.examples.dataset_examples import DatasetExamples
from tercet.data.examples.example_files import ExampleTexts
from tercet.data.examples.example_source import ExampleSource
from tercet.data.sources.documents import DocumentFiles
from tercet.data.sources.files import Errors, find_group, get_text, read_lines, read_objects
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.tables import column_names, read_table

SUFFIXES = (".tsv", ".csv", ".jsonl")
EXAMPLE_NAME = "pair with text on both sides"


class Pair(NamedTuple):
    """Sentence and its translation, without surrounding white space."""

    source: str
    target: str

    @property
    def texts(self) -> tuple[str, str]:
        return self

    @property
    def identity(self) -> str:
        return self.source

    @property
    def is_empty(self) -> bool:
        return not (self.source and self.target)


class GroupedPair(Pair):
    """Pair of a group, such as a document or a speaker."""

    group: str

    @staticmethod
    def of(source: str, target: str, group: str) -> "GroupedPair":
        pair = GroupedPair(source, target)
        pair.group = group
        return pair

    @property
    def identity(self) -> str:
        """The group, because other pairs of the group would reveal a validation pair."""
        return self.group


PairSource = ExampleSource[Pair]


class PairTexts(ExampleTexts[Pair]):
    """Pairs in memory."""

    example_name: ClassVar[str] = EXAMPLE_NAME


class DatasetPairs(DatasetExamples[Pair]):
    """Pairs of a dataset in another package."""

    example_name: ClassVar[str] = EXAMPLE_NAME


@dataclass(frozen=True, kw_only=True)
class PairFiles:
    """Pairs from the lines of the files `source` and `target`, or from the single file `source` (see `SUFFIXES`).

    `source_field` and `target_field` are the keys of a JSONL file and the columns of a CSV file. The first line of a
    TSV file is a header if it contains both; otherwise the file has two columns and the first line is a pair.
    `group_field` is that of `PairsSpec`, and `errors` that of `read_text`.
    """

    example_name: ClassVar[str] = EXAMPLE_NAME
    source: Path
    target: Path | None = None
    encoding: str = "utf-8"
    source_field: str = "source"
    target_field: str = "target"
    group_field: str | None = None
    errors: Errors = "strict"

    @property
    def name(self) -> str:
        return str(self.source)

    def examples(self) -> Iterator[Pair]:
        """Yield every pair without surrounding white space; a side may be empty.

        Raises:
            UserError: If a file cannot be read, the two files have different numbers of lines, or a single file lacks a
                field or column.
        """
        self.check()
        if self.has_fields():
            for location, values in self._rows():
                yield self.read_object(values, location)
            return
        if self.group_field is not None:
            raise UserError(
                f"{self.source} has no header with {self.source_field!r} and {self.target_field!r}, which "
                "data.group_field requires; add a first line with the names of the columns"
            )
        for source, target in self._read_lines():
            yield Pair(source.strip(), target.strip())

    def read_object(self, values: dict[str, object], location: str) -> Pair:
        """Return the pair in an object of JSONL, or in a row of a table.

        Args:
            values: The object or row.
            location: Its location in messages.

        Raises:
            UserError: If it lacks a side.
        """
        keys = (self.source_field, "data.source_language"), (self.target_field, "data.target_language")
        source, target = (get_text(values, key, location, setting).strip() for key, setting in keys)
        if self.group_field is None:
            return Pair(source, target)
        return GroupedPair.of(source, target, find_group(values, self.group_field, location))

    def files(self) -> list[Path]:
        """Return the paths of the single file, or of the two files."""
        return [self.source, *([self.target] if self.target else [])]

    def hash(self) -> str:
        self.check()
        digests = [DocumentFiles(root=path).hash() for path in self.files()]
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

    def size(self) -> int | None:
        self.check()
        sizes = [DocumentFiles(root=path).size() for path in self.files()]
        return None if None in sizes else sum(size for size in sizes if size)

    def check(self) -> None:
        """Raise UserError if a file does not exist, or the suffix of a single file is not one of pairs."""
        for path in self.files():
            if not path.is_file():
                DocumentFiles(root=path).files()  # raises with the nearest path, or lists the missing files
                raise UserError(f"{path} is a folder; use a file with one sentence per line")
        if not self.target and uncompressed_suffix(self.source) not in SUFFIXES:
            raise UserError(
                f"{self.source} is a single file, but not one of {', '.join(SUFFIXES)}; "
                "set data.target to the file of its translations, line by line"
            )

    def has_fields(self) -> bool:
        """Return True for a JSONL file, a CSV file, and a TSV file with a header; False for two files."""
        if self.target:
            return False
        if uncompressed_suffix(self.source) != ".tsv":
            return True
        first = next(read_lines(self.source, self.encoding, self.errors), "")
        return {self.source_field, self.target_field} <= {*column_names(first, ".tsv")}

    def _rows(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield each row or object of a file with fields, after its location."""
        keys = {self.source_field: "data.source_language", self.target_field: "data.target_language"}
        if self.group_field is not None:
            keys[self.group_field] = "data.group_field"
        if uncompressed_suffix(self.source) == ".jsonl":
            yield from read_objects(self.source, self.encoding, self.errors, list(keys))
            return
        for location, row in read_table(read_lines(self.source, self.encoding, self.errors), str(self.source), keys):
            yield location, {**row}

    def _read_lines(self) -> Iterator[tuple[str, str]]:
        if self.target:
            return _read_side_by_side(self.source, self.target, self.encoding, self.errors)
        return _read_columns(self.source, self.encoding, self.errors)


def _read_side_by_side(source: Path, target: Path, encoding: str, errors: Errors) -> Iterator[tuple[str, str]]:
    n_pairs = extra_sources = extra_targets = 0
    sides = (read_lines(path, encoding, errors) for path in (source, target))
    for source_line, target_line in zip_longest(*sides):
        if target_line is None:
            extra_sources += 1
        elif source_line is None:
            extra_targets += 1
        else:
            n_pairs += 1
            yield source_line, target_line
    if extra_sources or extra_targets:
        raise UserError(
            f"{source} has {n_pairs + extra_sources:,} lines and {target} {n_pairs + extra_targets:,}; "
            "each line of one file must be the translation of the same line of the other"
        )


def _read_columns(path: Path, encoding: str, errors: Errors) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path, encoding, errors), 1):
        columns = line.split("\t")
        if not line.strip():
            yield "", ""
        elif len(columns) != 2:
            raise UserError(
                f"{path} line {number} has {len(columns)} column{'s' * (len(columns) != 1)} between tabs; "
                "write a sentence, a tab and its translation on each line"
            )
        else:
            yield columns[0], columns[1]

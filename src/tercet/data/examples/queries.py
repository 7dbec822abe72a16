"""Pairs of a query and a document as a stream, with an optional hard negative: JSONL, CSV or TSV.

Surrounding white space is removed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from tercet.data.examples.dataset_examples import DatasetExamples
from tercet.data.examples.example_files import ExampleFile, ExampleTexts
from tercet.data.examples.example_source import ExampleSource
from tercet.data.sources.files import get_text, read_lines, read_objects
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.tables import read_table

EXAMPLE_NAME = "pair with a query and a document"


class QueryPair(NamedTuple):
    """Query, a document that is relevant to it, and a document that is not ("" if there is none)."""

    query: str
    document: str
    negative: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.query, self.document, *([self.negative] if self.negative else []))

    @property
    def identity(self) -> str:
        return self.query

    @property
    def is_empty(self) -> bool:
        return not (self.query and self.document)


QuerySource = ExampleSource[QueryPair]


class QueryTexts(ExampleTexts[QueryPair]):
    """Pairs in memory."""

    example_name: ClassVar[str] = EXAMPLE_NAME


class DatasetQueries(DatasetExamples[QueryPair]):
    """Pairs of a dataset in another package."""

    example_name: ClassVar[str] = EXAMPLE_NAME


@dataclass(frozen=True, kw_only=True)
class QueryFile(ExampleFile):
    """Pairs in the JSONL, CSV or TSV file `path`.

    The other fields are those of `QueriesSpec`; `errors` is that of `read_text`.
    """

    example_name: ClassVar[str] = EXAMPLE_NAME
    plural: ClassVar[str] = "queries and documents"
    line: ClassVar[str] = '{"query": ..., "document": ...}'
    query_field: str = "query"
    document_field: str = "document"
    negative_field: str | None = None

    def examples(self) -> Iterator[QueryPair]:
        """Yield every pair, including those with an empty side.

        Raises:
            UserError: If the file cannot be read, or a row lacks a field.
        """
        self._check()
        settings = self._settings
        if uncompressed_suffix(self.path) == ".jsonl":
            for location, values in read_objects(self.path, self.encoding, self.errors, list(settings)):
                yield self.read_object(values, location)
        else:
            lines = read_lines(self.path, self.encoding, self.errors)
            for _, row in read_table(lines, str(self.path), settings):
                yield QueryPair(*(row[key].strip() for key in settings))

    def read_object(self, values: dict[str, object], location: str) -> QueryPair:
        """Return the pair in an object of JSONL.

        Args:
            values: The object.
            location: Location of the object in messages.

        Raises:
            UserError: If it lacks a field.
        """
        if self.negative_field is not None and values.get(self.negative_field, "") is None:
            values = {**values, self.negative_field: ""}  # null is no negative
        return QueryPair(*(get_text(values, key, location, name).strip() for key, name in self._settings.items()))

    @property
    def _settings(self) -> dict[str, str]:
        """Fields of a pair, and the setting that names each."""
        settings = {self.query_field: "data.query_field", self.document_field: "data.document_field"}
        return settings if self.negative_field is None else {**settings, self.negative_field: "data.negative_field"}

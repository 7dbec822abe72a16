"""Labeled texts as a stream: a text or a pair of texts and its label, or a list of words with a label for each.

Files are JSONL, tables (CSV, TSV), or FASTA and FASTQ with labels in the headers. Labels are text: 3 and true in JSON
become "3" and "true". A label that is a number is read by `Example.number`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, cast

from tercet.config import UserError
from tercet.data.examples.dataset_examples import DatasetExamples
from tercet.data.examples.example_files import ExampleFile, ExampleTexts
from tercet.data.examples.example_source import ExampleSource
from tercet.data.examples.label_values import (
    parse_number,
    read_indicators,
    read_label,
    read_label_list,
    read_number,
    split_labels,
)
from tercet.data.sources.fasta import SUFFIXES as SEQUENCE_SUFFIXES
from tercet.data.sources.files import check_field, get_text, read_lines, read_objects
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.sequence_files import UNCHANGED, SequenceFile, SequenceSettings, join_records
from tercet.data.sources.sequence_headers import find_value, parse_header
from tercet.data.sources.tables import read_table
from tercet.messages import shorten
from tercet.spec import ProblemType

Over = Literal["texts", "tokens"]
EXAMPLE_NAME = "labeled text"


class Example(NamedTuple):
    """Labeled text: one text with its label, labels or number, or words with a label each."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    @property
    def number(self) -> float:
        """The label as a number, for regression."""
        return float(self.labels[0])

    @property
    def identity(self) -> str:
        return "\0".join(self.texts)

    @property
    def is_empty(self) -> bool:
        return not any(text.strip() for text in self.texts)


class PairExample(Example):
    """Labeled pair of texts, such as a query and a document."""

    @property
    def identity(self) -> str:
        """The first text, because another pair with the same query would reveal a validation example."""
        return self.texts[0]


class GroupedExample(Example):
    """Labeled text of a group, such as a patient or a family."""

    group: str

    @staticmethod
    def of(texts: tuple[str, ...], labels: tuple[str, ...], group: str) -> "GroupedExample":
        example = GroupedExample(texts, labels)
        example.group = group
        return example

    @property
    def identity(self) -> str:
        """The group, because other texts of the group would reveal a validation example."""
        return self.group


LabelSource = ExampleSource[Example]


class LabelTexts(ExampleTexts[Example]):
    """Labeled texts in memory."""

    example_name: ClassVar[str] = EXAMPLE_NAME


class DatasetLabels(DatasetExamples[Example]):
    """Labeled texts of a dataset in another package."""

    example_name: ClassVar[str] = EXAMPLE_NAME


@dataclass(frozen=True, kw_only=True)
class LabelFile(ExampleFile):
    """Labeled texts in the JSONL, CSV, TSV, FASTA or FASTQ file `path`.

    The other fields are those of `LabelsSpec`, whose settings for FASTA and FASTQ are in `sequences`; `errors` is that
    of `read_text`.
    """

    example_name: ClassVar[str] = EXAMPLE_NAME
    plural: ClassVar[str] = "labeled texts"
    line: ClassVar[str] = "one JSON object with a text and a label"
    text_field: str = "text"
    label_field: str = "label"
    label_pattern: str | None = None
    group_field: str | None = None
    group_pattern: str | None = None
    pair_field: str | None = None
    over: Over = "texts"
    problem_type: ProblemType = "single_label_classification"
    label_separator: str = ","
    label_fields: tuple[str, ...] = ()
    sequences: SequenceSettings = UNCHANGED

    def examples(self) -> Iterator[Example]:
        """Yield every example, including those with an empty text.

        Raises:
            UserError: If the file cannot be read, or a row lacks a text, a valid label or a group.
        """
        self._check()
        if self.is_sequences:
            for record in join_records(self.sequence_file.pieces(), self.name):
                labels = self._parse_labels(self._header_row(record.header), "")
                yield self._make_example((record.text,), labels, self._find_group(record.header))
        elif uncompressed_suffix(self.path) == ".jsonl":
            fields = [*self._text_settings, *self._label_settings, *self._group_settings]
            for location, values in read_objects(self.path, self.encoding, self.errors, fields):
                yield self.read_object(values, location)
        else:
            required_fields = {**self._text_settings, **self._label_settings, **self._group_settings}
            lines = read_lines(self.path, self.encoding, self.errors)
            for location, row in read_table(lines, str(self.path), required_fields):
                yield self.read_row(row, location)

    def read_object(self, values: dict[str, object], location: str) -> Example:
        """Return the labeled text in an object of JSONL.

        Args:
            values: The object.
            location: Location of the object in messages.

        Raises:
            UserError: If it lacks a text, a valid label or a group.
        """
        return self._read_words(values, location) if self.over == "tokens" else self._read_text(values, location)

    def read_row(self, row: dict[str, str], location: str) -> Example:
        """Return the labeled text in a row of a table.

        Args:
            row: Fields of the row by the names of their columns.
            location: Location of the row in messages.

        Raises:
            UserError: If it has no valid label or group.
        """
        texts = tuple(row[field].strip() for field in self._text_settings)
        return self._make_example(texts, self._parse_labels(row, location), self._read_group(row, location))

    @property
    def is_sequences(self) -> bool:
        """True if the file is FASTA or FASTQ."""
        return uncompressed_suffix(self.path) in SEQUENCE_SUFFIXES

    @property
    def sequence_file(self) -> SequenceFile:
        """The FASTA or FASTQ file, in which records without a valid label or a group are malformed."""
        label = "data.label_fields" if self.label_fields else "data.label_field or data.label_pattern"
        group = ", and data.group_field or data.group_pattern," if self._has_groups else ""
        return SequenceFile(
            path=self.path,
            encoding=self.encoding,
            errors=self.errors,
            settings=self.sequences,
            find_header_problem=self._find_header_problem,
            header_remedy=f"set {label}{group} to match the headers, or correct them",
        )

    def describe_left_out(self) -> str:
        """Return a note on the records that are left out, or "" if there are none, and for other files."""
        return self.sequence_file.describe_left_out() if self.is_sequences and self.sequences.leaves_out else ""

    @property
    def _has_groups(self) -> bool:
        return self.group_field is not None or self.group_pattern is not None

    def _header_row(self, header: str) -> dict[str, str]:
        """Return the fields of a header, with the label in `label_field`."""
        if self.label_pattern is None:
            return parse_header(header)
        label = find_value(header, self.label_field, self.label_pattern)
        return {} if label is None else {self.label_field: label}

    def _find_group(self, header: str) -> str:
        return (find_value(header, self.group_field or "", self.group_pattern) or "") if self._has_groups else ""

    def _find_header_problem(self, header: str) -> str:
        """Return the reason why a header has no valid label or group, or ""."""
        row = self._header_row(header)
        if missing := [field for field in self._label_settings if field not in row]:
            return f"no {'label' if self.label_pattern else repr(missing[0])} in its header{_list_fields(header)}"
        if self._has_groups and not self._find_group(header):
            return f"no {'group' if self.group_pattern else repr(self.group_field)} in its header{_list_fields(header)}"
        try:
            self._parse_labels(row, "its header")
        except UserError as error:
            return str(error).partition(";")[0]
        return ""

    def _check(self) -> None:
        if self.is_sequences and self.path.is_file():
            if self.over == "tokens" or self.pair_field is not None:
                raise UserError(f"{self.path}: a sequence has labels as a whole; set data.over to texts, without pairs")
            return
        super()._check()
        if self.label_pattern is not None or self.group_pattern is not None:
            raise UserError(
                f"{self.path} has no headers, to which data.label_pattern and data.group_pattern apply; set "
                "data.label_field and data.group_field to fields of the file"
            )
        if self.over == "tokens" and uncompressed_suffix(self.path) != ".jsonl":
            raise UserError(
                f"{self.path}: words and their labels are two lists, which only JSONL can contain; "
                'write {"tokens": [...], "labels": [...]} on each line of a .jsonl file'
            )

    def _read_text(self, values: dict[str, object], location: str) -> Example:
        texts = tuple(
            get_text(values, field, location, setting).strip() for field, setting in self._text_settings.items()
        )
        for field, setting in self._label_settings.items():
            check_field(values, field, location, setting)
        return self._make_example(texts, self._read_labels(values, location), self._read_group(values, location))

    def _make_example(self, texts: tuple[str, ...], labels: tuple[str, ...], group: str) -> Example:
        if self._has_groups:
            return GroupedExample.of(texts, labels, group)
        return Example(texts, labels) if self.pair_field is None else PairExample(texts, labels)

    @property
    def _text_settings(self) -> dict[str, str]:
        """Fields of the text or texts, and the setting that names each."""
        pair = {} if self.pair_field is None else {self.pair_field: "data.pair_field"}
        return {self.text_field: "data.text_field", **pair}

    @property
    def _label_settings(self) -> dict[str, str]:
        """Required fields other than the text field, and the setting that names each."""
        fields = dict.fromkeys(self.label_fields, "data.label_fields")
        return fields or {self.label_field: "data.label_field"}

    @property
    def _group_settings(self) -> dict[str, str]:
        """Field of the group, and the setting that names it; empty if there are no groups."""
        return {} if self.group_field is None else {self.group_field: "data.group_field"}

    def _read_group(self, values: Mapping[str, object], location: str) -> str:
        if self.group_field is None:
            return ""
        check_field(dict(values), self.group_field, location, "data.group_field")
        return read_label(values[self.group_field], location, self.group_field)

    def _read_labels(self, values: dict[str, object], location: str) -> tuple[str, ...]:
        field = self.label_field
        match self.problem_type:
            case "single_label_classification":
                return (read_label(values[field], location, field),)
            case "regression":
                return (read_number(values[field], location, field),)
            case "multi_label_classification" if self.label_fields:
                return read_indicators(values, self.label_fields, location)
            case "multi_label_classification":
                return read_label_list(values[field], location, field)

    def _parse_labels(self, row: dict[str, str], location: str) -> tuple[str, ...]:
        """Return the labels in a row of a table, whose fields are all text."""
        field = self.label_field
        match self.problem_type:
            case "single_label_classification":
                return (read_label(row[field], location, field),)
            case "regression":
                return (parse_number(row[field], location, field),)
            case "multi_label_classification" if self.label_fields:
                return read_indicators(row, self.label_fields, location)
            case "multi_label_classification":
                return split_labels(row[field], self.label_separator, location, field)

    def _read_words(self, values: dict[str, object], location: str) -> Example:
        keys = list[str]()
        for key, default, setting in (
            (self.text_field, ("text", "tokens"), "data.text_field"),
            (self.label_field, ("label", "labels"), "data.label_field"),
        ):
            key = default[1] if key == default[0] and key not in values else key
            check_field(values, key, location, setting)
            keys.append(key)
        words, labels = (values[key] for key in keys)
        if not isinstance(words, list) or not isinstance(labels, list):
            raise UserError(f"{location}: over tokens, {keys[0]!r} and {keys[1]!r} must be two lists")
        if len(words) != len(labels):
            raise UserError(
                f"{location} has {len(words)} items in {keys[0]!r} and {len(labels)} in {keys[1]!r}; label each word"
            )
        located_words = [
            (f"{location}: word {number}", word) for number, word in enumerate(cast(list[object], words), 1)
        ]
        texts = [
            get_text({keys[0]: word}, keys[0], word_location, "data.text_field").strip()
            for word_location, word in located_words
        ]
        word_labels = [read_label(label, location, keys[1]) for label in cast(list[object], labels)]
        return self._make_example(tuple(texts), tuple(word_labels), self._read_group(values, location))


def _list_fields(header: str) -> str:
    """Return the names of the fields of a header in parentheses; "" if it has none."""
    fields = ", ".join(parse_header(header))
    return f" (fields: {shorten(fields)})" if fields else ""

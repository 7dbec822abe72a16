"""Tables whose header row names the columns: CSV as Python's `csv` reads it, with separators and newlines in quoted
fields, and TSV, a row a line, in which quotes are text."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tercet import limits
from tercet.config import UserError
from tercet.data.sources.files import suggest_field
from tercet.data.sources.formats import uncompressed_suffix

TABLE_SUFFIXES = (".csv", ".tsv")
MAX_COLUMNS_SHOWN = 20  # columns that a refusal names


def read_table(lines: Iterable[str], name: str, required: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the location of each row, and its fields by the names of their columns, with the white space around them.

    Args:
        lines: of the file, without their ends.
        name: the file's, whose ending says what separates fields.
        required: columns that there must be, and by which setting each was chosen.

    Raises:
        UserError: where it is no such table.
    """
    is_tsv = uncompressed_suffix(Path(name)) == ".tsv"
    header: list[str] | None = None
    for number, row in _tsv_rows(lines) if is_tsv else _csv_rows(lines, name):
        location = f"{name} line {number}"
        if header is None:
            header = [column.strip() for column in row]
            _check_header(header, required, location)
        elif len(row) != len(header):
            remedy = "" if is_tsv else ", and put fields that hold the separator in quotes"
            if is_tsv and any('"' in field for field in row):
                remedy = "; quotes are text in TSV and cannot hold a tab or a newline: write those as .csv or .jsonl"
            raise UserError(
                f"{location} has {len(row)} fields and the header {len(header)}; give every row as many{remedy}"
            )
        else:
            yield location, dict(zip(header, row, strict=True))


def column_names(line: str, suffix: str) -> list[str]:
    """Return the names of the columns in the first line of a table; none if it is no CSV."""
    try:
        columns = line.split("\t") if suffix == ".tsv" else next(csv.reader([line]), [])
    except csv.Error:
        return []
    return [column.strip() for column in columns]


def _tsv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The number of each line that is not empty, and what stands between its tabs.

    Quotes are text, as the registration of text/tab-separated-values and the corpora of sentence pairs have it. As
    quotes of CSV, one at the beginning of a sentence and one at the end of a later sentence would make one row of all
    lines between them.
    """
    for number, line in enumerate(lines, 1):
        if line := line.removesuffix("\r"):
            yield number, line.split("\t")


def _csv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """The first line's number of each row that is not empty, and its fields."""
    first, row_characters = 1, 0
    remedy = 'put fields with quotes or newlines in "quotes", quotes within them twice, or use .jsonl'

    def bounded_lines() -> Iterator[str]:
        nonlocal row_characters
        for line in lines:
            row_characters += len(line) + 1
            if row_characters > limits.LINE_CHARACTERS:  # a quote may go on over all lines
                limit = f"{limits.LINE_CHARACTERS:,} characters"
                raise UserError(f"{name} line {first}: the row has more than {limit}; {remedy}")
            yield line + "\n"

    reader = csv.reader(bounded_lines(), strict=True)
    while True:
        first = reader.line_num + 1  # of the row's lines
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{name} line {first} is not CSV ({error}); {remedy}") from None
        row_characters = 0
        if row is None:
            return
        if row:
            yield first, row


def _check_header(header: list[str], required: Mapping[str, str], location: str) -> None:
    for field, setting in required.items():
        if field not in header:
            guess = suggest_field(field, header)
            columns = "" if guess.startswith("; known") else f"; its columns: {', '.join(header[:MAX_COLUMNS_SHOWN])}"
            raise UserError(f"{location}, the header, has no column {field!r}{guess} (set {setting}){columns}")
        if header.count(field) > 1:
            raise UserError(f"{location}, the header, has {field!r} more than once; give each column its own name")

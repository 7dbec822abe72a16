"""CSV and TSV as Python's `csv` reads them: a header row names the columns; a quoted field may hold separators and
newlines."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tercet import limits
from tercet.config import UserError
from tercet.data.files import suggest_field, uncompressed_suffix

SEPARATORS = {".csv": ",", ".tsv": "\t"}
SHOWN = 20  # columns that a refusal names


def read_table(lines: Iterable[str], name: str, needed: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row stands, and its fields by their columns' names, without spaces around them.

    Args:
        lines: of the file, without their ends.
        name: the file's, whose ending says what separates fields.
        needed: columns that there must be, and by which setting each was chosen.

    Raises:
        UserError: where it is no such table.
    """
    suffix = uncompressed_suffix(Path(name))
    first, row_characters = 1, 0

    def bounded() -> Iterator[str]:
        nonlocal row_characters
        for line in lines:
            row_characters += len(line) + 1
            if row_characters > limits.LINE_CHARACTERS:  # a quote may go on over all lines
                most = f"{limits.LINE_CHARACTERS:,} characters"
                raise UserError(f"{name} line {first}: the row has more than {most}; {remedy}")
            yield line + "\n"

    remedy = 'put fields with quotes or newlines in "quotes", quotes within them twice, or use .jsonl'
    reader = csv.reader(bounded(), delimiter=SEPARATORS[suffix], strict=True)
    header: list[str] | None = None
    while True:
        first = reader.line_num + 1  # of the row's lines
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{name} line {first} is not {suffix[1:].upper()} ({error}); {remedy}") from None
        row_characters = 0
        if row is None:
            return
        if not row:
            continue
        location = f"{name} line {first}"
        if header is None:
            header = [column.strip() for column in row]
            _check_header(header, needed, location)
        elif len(row) != len(header):
            raise UserError(
                f"{location} has {len(row)} fields and the header {len(header)}; "
                "give every row as many, and put fields that hold the separator in quotes"
            )
        else:
            yield location, {column: field.strip() for column, field in zip(header, row, strict=True)}


def _check_header(header: list[str], needed: Mapping[str, str], location: str) -> None:
    for field, setting in needed.items():
        if field not in header:
            guess = suggest_field(field, header)
            columns = "" if guess.startswith("; known") else f"; its columns: {', '.join(header[:SHOWN])}"
            raise UserError(f"{location}, the header, has no column {field!r}{guess} (set {setting}){columns}")
        if header.count(field) > 1:
            raise UserError(f"{location}, the header, has {field!r} more than once; give each column its own name")

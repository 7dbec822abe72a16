"""Tables with a header row: CSV as in Python's `csv`, and TSV with one row per line and no quoting.

The separator of CSV is a comma. If the header has no comma, it is a semicolon or a tab, as spreadsheet programs write
it in countries with a decimal comma, or after a first line such as "sep=;".
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from tercet import limits
from tercet.config import UserError
from tercet.data.sources.files import suggest_field
from tercet.data.sources.formats import uncompressed_suffix
from tercet.messages import counted

TABLE_SUFFIXES = (".csv", ".tsv")
SEPARATORS = (",", ";", "\t")
SEPARATOR_LINE = re.compile(r'"?sep=([,;\t])"?')  # first line by which Excel recognizes the separator
SPREADSHEET_ERRORS = frozenset(("#N/A", "#DIV/0!", "#REF!", "#VALUE!", "#NAME?", "#NUM!", "#NULL!"))  # of formulas
MAX_COLUMNS_SHOWN = 20  # columns listed in an error


def read_table(lines: Iterable[str], name: str, required: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the location of each row after the header, and its fields by column name, with surrounding white space.

    Args:
        lines: Lines of the file, without their ends.
        name: Name of the file, whose suffix selects the separator.
        required: Required columns, and the setting that names each, for messages.

    Raises:
        UserError: If the header lacks a required column or has it twice, a row has more or fewer fields than the
            header, a required column has the error of a formula such as #N/A, or a row is not valid CSV or longer than
            `limits.LINE_CHARACTERS`.
    """
    is_tsv = _is_tsv(name)
    header: list[str] | None = None
    rows = numbered_rows(lines, name)
    for number, row in rows:
        location = f"{name} line {number}"
        if header is None:
            header = [column.strip() for column in row]
            _check_header(header, required, location)
        elif len(row) != len(header):
            remedy = "" if is_tsv else ", and quote fields that contain the separator"
            if is_tsv and any('"' in field for field in row):
                remedy = "; quotes are text in TSV and cannot enclose a tab or a newline: use .csv or .jsonl instead"
            raise UserError(
                f"{location} has {len(row)} fields but the header has {len(header)}; write as many in every row{remedy}"
            )
        else:
            values = dict(zip(header, row, strict=True))
            if error := _find_error(values, required):
                others = sum(_find_error(dict(zip(header, row, strict=False)), required) is not None for _, row in rows)
                count = counted(1 + others, "row has", "rows have")
                raise UserError(
                    f"{location}: the column {error!r} has {values[error].strip()}, the error of a formula ({count} "
                    "such errors); correct the spreadsheet, or remove these rows"
                )
            yield location, values


def numbered_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Return an iterator over the number of the first line and the fields of each nonempty row, including the header.

    Args:
        lines: Lines of the file, without their ends.
        name: Name of the file, whose suffix selects the separator.

    Raises:
        UserError: If a row is not valid CSV or longer than `limits.LINE_CHARACTERS`.
    """
    return _tsv_rows(lines) if _is_tsv(name) else _csv_rows(lines, name)


def _is_tsv(name: str) -> bool:
    return uncompressed_suffix(Path(name)) == ".tsv"


def _find_error(values: Mapping[str, str], columns: Iterable[str]) -> str | None:
    """Return the first of some columns that has the error of a formula in a row; None if none has."""
    return next((name for name in columns if values.get(name, "").strip() in SPREADSHEET_ERRORS), None)


def column_names(line: str, suffix: str) -> list[str]:
    """Return the column names in the first line of a table with this suffix; none if it is not valid CSV."""
    try:
        columns = line.split("\t") if suffix == ".tsv" else next(_read_csv([line]), [])
    except csv.Error:
        return []
    return [column.strip() for column in columns]


def _tsv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each nonempty line.

    Quotes are text, as in the registration of the media type text/tab-separated-values and in corpora of sentence
    pairs. With the quotes of CSV, a quote at the start of one sentence and another at the end of a later one would join
    all lines between them into one row.
    """
    for number, line in enumerate(lines, 1):
        if line := line.removesuffix("\r"):
            yield number, line.split("\t")


def is_separator_line(line: str) -> bool:
    """Return True if the line only names the separator, such as "sep=;"."""
    return SEPARATOR_LINE.fullmatch(line.strip(" \r\n")) is not None


def _read_csv(lines: Iterable[str], *, strict: bool = False) -> Any:
    """Return a `csv.reader` of the lines, with the separator that the first nonempty one requires."""
    lines, start = iter(lines), list[str]()
    for line in lines:
        start.append(line)
        if line.strip():
            break
    first = start[-1] if start else ""
    if match := SEPARATOR_LINE.fullmatch(first.strip(" \r\n")):
        separator, start[-1] = match[1], "\n"
    else:
        separator = next((mark for mark in SEPARATORS if _has_columns(first, mark)), ",")
    return csv.reader(chain(start, lines), delimiter=separator, strict=strict)


def _has_columns(line: str, separator: str) -> bool:
    try:
        return len(next(csv.reader([line], delimiter=separator), [])) > 1
    except csv.Error:  # reading the row reports it
        return False


def _csv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the fields of each nonempty row."""
    first, row_characters = 1, 0
    remedy = 'enclose fields with quotes or newlines in "quotes", double the quotes within them, or use .jsonl'

    def bounded_lines() -> Iterator[str]:
        nonlocal row_characters
        for line in lines:
            row_characters += len(line) + 1
            if row_characters > limits.LINE_CHARACTERS:  # an unclosed quote spans all following lines
                limit = f"{limits.LINE_CHARACTERS:,} characters"
                raise UserError(f"{name} line {first}: the row has more than {limit}; {remedy}")
            yield line + "\n"

    reader = _read_csv(bounded_lines(), strict=True)
    while True:
        first = reader.line_num + 1  # first line of the row
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
            is_far = guess.startswith("; known")
            columns = "" if is_far else f"; its columns: {', '.join(header[:MAX_COLUMNS_SHOWN])}"
            pairs = is_far and len(header) == 2 and field == "text" and setting.startswith("data.text_field")
            flags = "; for sentence pairs, pass --source-field and --target-field" if pairs else ""
            raise UserError(
                f"{location}, the header, has no column {field!r}{guess} (rename it, or set {setting}{flags}){columns}"
            )
        if header.count(field) > 1:
            raise UserError(f"{location}, the header, has {field!r} more than once; give each column its own name")

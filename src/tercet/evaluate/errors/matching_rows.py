"""Select the rows of files by the value of a column, such as the domain or the source of each text."""

import csv
import io
import json
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from tercet.config import UserError
from tercet.data.sources.documents import DocumentFiles
from tercet.data.sources.files import read_lines, read_objects
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.tables import TABLE_SUFFIXES, read_table
from tercet.messages import shorten, show

SHOWN_VALUES = 8  # values of the column in the error about a value that does not occur


@contextmanager
def matching_rows(path: str | Path, condition: str, *, encoding: str) -> Generator[Path]:
    """Write the rows that match a condition to temporary files of the same formats, and yield their path.

    A row has the same line number as in the original file, because messages contain it.

    Args:
        path: A .jsonl, .csv or .tsv file, also compressed by gzip; or a folder of them, for which a folder is yielded.
        condition: COLUMN=VALUE. Numbers and booleans of JSON are compared as JSON writes them.
        encoding: Encoding of the files; the temporary files are in UTF-8.

    Raises:
        UserError: If the condition or a file is invalid, or no row matches.
    """
    column, equals, value = condition.partition("=")
    if not column or not equals:
        raise UserError(f"{show(condition)} is not a condition; write COLUMN=VALUE, such as domain=news")
    root, counts = Path(path), Counter[str]()
    files = DocumentFiles(root=root).files() if root.is_dir() else [root]
    for file in files:
        if uncompressed_suffix(file) not in (*TABLE_SUFFIXES, ".jsonl") or not file.is_file():
            raise UserError(
                f"{file}: rows can be selected only in .jsonl, .csv and .tsv files; pass such a file, or a folder of "
                "them"
            )
    with tempfile.TemporaryDirectory() as name:
        folder, selected = Path(name), Path(name)
        for file in files:
            parent = folder / file.parent.relative_to(root) if root.is_dir() else folder
            parent.mkdir(parents=True, exist_ok=True)
            selected = parent / f"{file.name.split('.')[0]}{uncompressed_suffix(file)}"
            while selected.exists():  # such as a.csv and a.csv.gz
                selected = selected.with_stem(f"{selected.stem}_")
            file_counts = _write_matching(file, selected, column, value, encoding)
            counts.update(file_counts)
            if not file_counts[value]:
                selected.unlink()
        if not counts[value]:
            common = counts.most_common(SHOWN_VALUES)
            values = ", ".join(f"{shorten(name, 40) or repr('')} ({count:,})" for name, count in common)
            raise UserError(f"no row of {path} has {column}={shorten(value)}; its values: {values or 'none'}")
        yield folder if root.is_dir() else selected


def _write_matching(file: Path, selected: Path, column: str, value: str, encoding: str) -> Counter[str]:
    """Write the matching rows of a file to `selected`, and return the number of rows with each value."""
    counts, n_lines = Counter[str](), 0
    is_jsonl = uncompressed_suffix(file) == ".jsonl"
    with selected.open("w", encoding="utf-8", newline="") as out:
        for number, found, line in (_json_rows if is_jsonl else _table_rows)(file, column, encoding):
            if found is not None:  # None for the header
                counts[found] += 1
            if found in (None, value):
                padding = "\n" * (number - 1 - n_lines)
                out.write(f"{padding}{line}\n")
                n_lines += len(padding) + line.count("\n") + 1
    return counts


def _json_rows(path: Path, column: str, encoding: str) -> Iterator[tuple[int, str | None, str]]:
    """Yield the number of each line, the value of the column ("" if it is missing), and the line."""
    for location, row in read_objects(path, encoding, "strict", [column]):
        value = row.get(column, "")
        text = value if isinstance(value, str) else json.dumps(value)
        yield int(location.rpartition(" ")[2]), text, json.dumps(row)


def _table_rows(path: Path, column: str, encoding: str) -> Iterator[tuple[int, str | None, str]]:
    """Yield the number of the first line of each row, the value of the column, and the row; None for the header."""
    has_header = False
    for location, row in read_table(read_lines(path, encoding, "strict"), str(path), {column: "--where"}):
        number = int(location.rpartition(" ")[2])
        if not has_header:
            yield 1, None, _format_row(list(row), path)
            has_header = True
        yield number, row[column].strip(), _format_row(list(row.values()), path)


def _format_row(fields: list[str], path: Path) -> str:
    if uncompressed_suffix(path) == ".tsv":
        return "\t".join(fields)
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue().removesuffix("\n")

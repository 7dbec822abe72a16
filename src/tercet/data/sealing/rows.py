"""Rows of a data file with their original text, so that both parts of a sealed source have its format."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path

from tercet.data.sources.fasta import SUFFIXES as SEQUENCE_SUFFIXES
from tercet.data.sources.fasta import find_sequence_reader
from tercet.data.sources.files import read_lines, read_objects, read_text
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.tables import TABLE_SUFFIXES, numbered_rows

SUFFIXES = (".jsonl", *TABLE_SUFFIXES, *SEQUENCE_SUFFIXES)


def read_rows(path: Path, encoding: str, *, has_header: bool = True) -> Iterator[str]:
    """Yield the text before the first row, such as the header of a table, then each row with its line ends.

    A row is a JSON object, a row of a table, or a record of FASTA or FASTQ. The objects of a JSON array are written on
    one line each.

    Args:
        path: File with one of `SUFFIXES`.
        encoding: Encoding of the file.
        has_header: If False, each line of a table is a row.

    Raises:
        UserError: If the file cannot be read, or does not have the format of its name.
    """
    if uncompressed_suffix(path) == ".jsonl" and next(read_text(path, encoding)).lstrip().startswith("["):
        yield ""
        for _, values in read_objects(path, encoding, "strict", ()):
            yield json.dumps(values, ensure_ascii=False) + "\n"
        return
    yield from _cut_lines(read_lines(path, encoding), _find_starts(path, encoding, has_header=has_header))


def _find_starts(path: Path, encoding: str, *, has_header: bool) -> Iterator[int]:
    """Yield the number of the first line of each row, from 1."""
    lines, suffix = read_lines(path, encoding), uncompressed_suffix(path)
    if reader := find_sequence_reader(suffix):
        yield from (line for line, _ in groupby(piece.line for piece in reader(lines, str(path))))
    elif suffix == ".jsonl":
        yield from (number for number, line in enumerate(lines, 1) if line.strip())
    elif has_header:
        yield from (number for number, _ in islice(numbered_rows(lines, str(path)), 1, None))
    else:
        yield from (number for number, _ in enumerate(lines, 1))


def _cut_lines(lines: Iterable[str], starts: Iterator[int]) -> Iterator[str]:
    """Yield the lines before the first start, then the lines from each start to the next one, joined."""
    start, row = next(starts, None), list[str]()
    for number, line in enumerate(lines, 1):
        if number == start:
            yield "".join(row)
            start, row = next(starts, None), []
        row.append(line + "\n")
    yield "".join(row)

"""Texts from a file or from stdin, as a stream: a line each, the field of a JSON object a line, a table's column, or a
sequence of FASTA and FASTQ."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from tercet.cli.lines import open_lines, read_lines
from tercet.cli.parser import parse_number
from tercet.messages import print_note
from tercet.spec import BatchTokens

READING_FLAGS = (
    "encoding",
    "text_field",
    "documents",
    "dtype",
)  # how files of data are read: keys of `data` that are flags too
DATA_FLAGS = (
    "data",
    "source",
    "target",
    "validation_source",
    "validation_target",
    "pretrained",
)  # as `RunRequest` has them
POOL = 1024  # texts read before any is worked on: sorted by length, they fill the batches
FIELD = "text"


class Text(NamedTuple):
    """A text, and the `id` of its JSON object or row where that has one."""

    text: str
    id: str | int | None = None


def recipe_changes(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags of `add_reading` and `--set` change of a recipe."""
    reading = {name: value for name in READING_FLAGS if (value := getattr(args, name)) is not None}
    changes: dict[str, Any] = {"data": reading} if reading else {}
    if args.set:
        from tercet.settings_yaml import merge_assignments

        changes = merge_assignments(changes, args.set)
    return changes


def add_text(add: Callable[..., Any]) -> None:
    """A text of its own, in place of a file of them."""
    add("text", metavar="TEXT", nargs="?", help="this text; or -, as by default, for those on stdin, a line each")


def add_input(add: Callable[..., Any], does: str = "read this file in place of stdin") -> None:
    add("--input", metavar="FILE", help=f"{does}: a text a line, .jsonl, .csv, .tsv, or sequences (.fa, .fastq)")
    add(
        "--text-field",
        metavar="NAME",
        help="each line is a JSON object with the text under this name, or it is the column's of a .csv or .tsv file "
        "(of these and of .jsonl files: text)",
    )


def add_reading(add: Callable[..., Any]) -> None:
    """The flags of `READING_FLAGS`."""
    add("--encoding", metavar="NAME", help="of text files, such as latin-1 (data.encoding)")
    add("--text-field", metavar="NAME", help="the key or column of JSONL, CSV, TSV, Parquet (data.text_field)")
    add(
        "--documents",
        choices=("file", "line", "blank_line"),
        help="a document of a text file: all of it, a line, or what stands between empty lines (data.documents)",
    )
    add("--dtype", choices=("uint16", "uint32"), help="of the ids in a .bin file (data.dtype; default: uint16)")


def add_batches(add: Callable[..., Any]) -> None:
    add(
        "--batch-tokens",
        metavar="N",
        type=parse_number(BatchTokens),
        default=16_384,
        help="of a batch; fewer need less memory (default: 16384)",
    )


def read_texts(args: argparse.Namespace, files: ExitStack, *, flag: str = "input") -> Iterator[Text]:
    """The texts that `add_text` and `add_input`'s flags mean. What cannot be opened is told at once.

    Args:
        flag: Name of the flag that has the file.

    Raises:
        UserError: If a file cannot be read, if a line is malformed, with its number, or if both a text and a file of
            texts are given.
    """
    path: str | None = getattr(args, flag)
    if (text := getattr(args, "text", None)) not in (None, "-"):
        if path is not None or args.text_field is not None:
            from tercet.config import UserError

            raise UserError("TEXT is a text of its own, --input and --text-field are for texts in a file; give one")
        return iter([Text(text)])
    name = path if path not in (None, "-") else "stdin"
    field = args.text_field
    if name == "stdin":
        lines = read_lines(sys.stdin.buffer, name)
    else:
        lines = open_lines(Path(name), f"--{flag}", files)
        from tercet.data.sources.fasta import SUFFIXES
        from tercet.data.sources.files import read_objects
        from tercet.data.sources.formats import uncompressed_suffix  # after what cannot be opened is refused
        from tercet.data.sources.tables import TABLE_SUFFIXES

        suffix = uncompressed_suffix(Path(name))
        if suffix in TABLE_SUFFIXES:
            return _rows(lines, field or FIELD, name)
        if suffix in SUFFIXES:
            return _records(lines, suffix, name)
        if suffix == ".jsonl":
            return _objects(read_objects(Path(name), "utf-8", "strict", [field or FIELD]), field or FIELD)
    if field is None:
        return (Text(line) for line in lines)
    from tercet.data.sources.files import objects_of_lines

    return _objects(objects_of_lines(lines, name, [field]), field)


def _rows(lines: Iterator[str], field: str, name: str) -> Iterator[Text]:
    from tercet.data.sources.tables import read_table

    rows = read_table(lines, name, {field: "--text-field"})
    first = next(rows, None)  # now, before a model is opened: the header may lack the column
    return (
        Text(row[field], row["id"].strip() if "id" in row else None)
        for _, row in chain(() if first is None else (first,), rows)
    )


def _records(lines: Iterator[str], suffix: str, name: str) -> Iterator[Text]:
    """The sequences of a FASTA or FASTQ file, each with its name as `id`."""
    from tercet.config import UserError
    from tercet.data.sources.fasta import find_sequence_reader
    from tercet.limits import LINE_CHARACTERS

    read = find_sequence_reader(suffix)
    assert read is not None
    parts, length = list[str](), 0
    for text, last, record in read(lines, name):
        parts.append(text)
        length += len(text)
        if length > LINE_CHARACTERS:
            raise UserError(f"{name}, record {record!r} has more than {LINE_CHARACTERS:,} letters; cut it into records")
        if last:
            yield Text("".join(parts), record or None)
            parts, length = [], 0


def _objects(rows: Iterable[tuple[str, dict[str, object]]], field: str) -> Iterator[Text]:
    from tercet.data.sources.files import check_unicode, get_text

    for location, row in rows:
        id = row.get("id")
        if isinstance(id, bool) or not isinstance(id, str | int):
            id = None
        elif isinstance(id, str):
            check_unicode(id, location, "id")
        yield Text(get_text(row, field, location, "--text-field"), id)


def report_truncated(cut: int, max_len: int, *, noun: str = "text") -> None:
    """Say on stderr how many texts the model did not see the end of."""
    if cut:
        subject = f"{cut:,} {noun}s are" if cut > 1 else f"1 {noun} is"
        were = "were" if cut > 1 else "was"
        print_note(f"tercet: {subject} longer than the model takes, and {were} cut to {max_len:,} tokens")

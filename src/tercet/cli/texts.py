"""Texts from the command line, files or stdin, read one by one; and flags that several verbs share.

A text is a line of a file, a value in a JSON object or a table row, a sequence of a FASTA or FASTQ file, or for some
verbs a document.
"""

import argparse
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tercet.cli.documents import read_document_texts, reads_documents
from tercet.cli.lines import open_lines, read_lines
from tercet.cli.parser import parse_number
from tercet.messages import counted, print_note, shorten
from tercet.spec import BatchTokens

READING_FLAGS = (
    "encoding",
    "text_field",
    "documents",
    "dtype",
)  # keys of `data` that are also flags
FIELD_FLAGS = {
    "label_field": "label_field",
    "label_pattern": "label_pattern",
    "source_field": "source_language",
    "target_field": "target_language",
}  # flags of `train` and the keys of `data` that they set
DATA_FLAGS = (
    "data",
    "source",
    "target",
    "validation_source",
    "validation_target",
    "pretrained",
)  # fields of `RunRequest`
FIELD = "text"  # default of --text-field

if TYPE_CHECKING:
    from tercet.checkpoint import TrainedModel


class Text(NamedTuple):
    """A text.

    Attributes:
        text: The text.
        id: Value of the key or column `id` next to the text, the name of a sequence, or the path of a document; None if
            there is none.
        pair: Second text of a pair; None for a single text.
    """

    text: str
    id: str | int | None = None
    pair: str | None = None


def recipe_changes(args: argparse.Namespace) -> dict[str, Any]:
    """Return the changes of a recipe by --set and the flags of `add_reading`, as nested mappings."""
    reading = {name: value for name in READING_FLAGS if (value := getattr(args, name)) is not None}
    reading |= {key: value for flag, key in FIELD_FLAGS.items() if (value := getattr(args, flag, None)) is not None}
    changes: dict[str, Any] = {"data": reading} if reading else {}
    if args.set:
        from tercet.settings_yaml import merge_assignments

        changes = merge_assignments(changes, args.set)
    return changes


def data_changes(assignments: Iterable[str]) -> dict[str, Any]:
    """Return the changes of `data` by --set, as nested mappings, of a verb that has no other settings.

    Raises:
        UserError: If an assignment is invalid, or sets another key than those of `data`.
    """
    from tercet.config import UserError
    from tercet.settings_yaml import merge_assignments

    changes = merge_assignments({}, assignments)
    if other_keys := [key for key in changes if key != "data"]:
        raise UserError(f"--set {other_keys[0]}: only keys of data apply, such as data.validation.kind")
    data = changes.get("data", {})
    if not isinstance(data, dict):
        raise UserError("--set data: not a setting; set one of its keys, such as data.validation.fraction=0.01")
    return data


def add_text(add: Callable[..., Any]) -> None:
    """Add the positional argument TEXT, for a single text or -."""
    add("text", metavar="TEXT", nargs="?", help="text, or - for stdin, one text per line (default: -)")


def add_input(add: Callable[..., Any], does: str = "file to read instead of stdin", *, folders: bool = False) -> None:
    """Add the flags for a file of texts, --input and --text-field.

    Args:
        add: Function that adds a flag.
        does: Beginning of the help of --input.
        folders: If True, the help also names the folders and documents that `add_documents` allows.
    """
    formats = "one text per line, .jsonl, .csv, .tsv, or sequences (.fa, .fastq)"
    if folders:
        formats += "; or a document (.pdf, .html, .docx, ...) or folder of documents, each read as one text"
    add("--input", metavar="FILE", help=f"{does}: {formats}")
    add(
        "--text-field",
        metavar="NAME",
        help="JSON key or table column of the text (default: text for .jsonl, .csv and .tsv; lines of other files are "
        "plain text)",
    )


def add_reading(add: Callable[..., Any]) -> None:
    """Add the flags of `READING_FLAGS`."""
    add("--encoding", metavar="NAME", help="encoding of text files, such as latin-1 (data.encoding)")
    add(
        "--text-field",
        metavar="NAME",
        help="key or column of the text in JSONL, CSV, TSV, Parquet (data.text_field; default: text, or that "
        "of the model that is evaluated)",
    )
    add(
        "--documents",
        choices=("file", "line", "blank_line"),
        help="extent of a document in a text file: the file, a line, or a block between empty lines (data.documents)",
    )
    add(
        "--dtype", choices=("uint16", "uint32"),
        help="type of the token ids in a .bin file (data.dtype; default: uint16, or that of the model that is "
        "evaluated)",
    )  # fmt: skip


def add_batches(add: Callable[..., Any]) -> None:
    add(
        "--batch-tokens",
        metavar="N",
        type=parse_number(BatchTokens),
        default=16_384,
        help="maximum tokens per batch, including padding; fewer need less memory (default: 16384)",
    )


def read_texts(args: argparse.Namespace, files: ExitStack, *, flag: str = "input") -> Iterator[Text]:
    """Return the texts that the arguments of `add_text` and `add_input` select.

    A file is opened by this call, not when the iterator is read, so that a missing file is reported early.

    Args:
        args: Parsed command line.
        files: Stack that closes the file.
        flag: Name of the flag with the file, without hyphens.

    Raises:
        UserError: If the file cannot be read, or both a text and a file or field are passed. The iterator raises it if
            a line is malformed, with the number of the line.
    """
    path: str | None = getattr(args, flag)
    pair: str | None = getattr(args, "pair_field", None)
    if (text := getattr(args, "text", None)) not in (None, "-"):
        if path is not None or args.text_field is not None or pair is not None:
            from tercet.config import UserError

            raise UserError("TEXT cannot be combined with --input, --text-field or --pair-field; pass one of them")
        return iter([Text(text)])
    if reads_documents(args, path) and path is not None:
        return (Text(*document) for document in read_document_texts(args, path, args.text_field or FIELD))
    name = path if path not in (None, "-") else "stdin"
    field = args.text_field if pair is None else args.text_field or FIELD
    if name == "stdin":
        lines = read_lines(sys.stdin.buffer, name)
    else:
        lines = open_lines(Path(name), f"--{flag}", files)
        from tercet.data.sources.fasta import SUFFIXES
        from tercet.data.sources.files import read_objects
        from tercet.data.sources.formats import uncompressed_suffix  # after files that cannot be opened are rejected
        from tercet.data.sources.tables import TABLE_SUFFIXES

        suffix = uncompressed_suffix(Path(name))
        if suffix in TABLE_SUFFIXES:
            return _rows(lines, field or FIELD, pair, name)
        if suffix in SUFFIXES and pair is None:
            return _records(lines, suffix, name)
        if suffix == ".jsonl":
            fields = [field or FIELD, *([] if pair is None else [pair])]
            return _objects(read_objects(Path(name), "utf-8", "strict", fields), field or FIELD, pair)
    if field is None:
        return (Text(line) for line in lines)
    from tercet.data.sources.files import objects_of_lines

    return _objects(objects_of_lines(lines, name, [field, *([] if pair is None else [pair])]), field, pair)


def _rows(lines: Iterator[str], field: str, pair: str | None, name: str) -> Iterator[Text]:
    from tercet.data.sources.tables import read_table

    rows = read_table(lines, name, {field: "--text-field", **({} if pair is None else {pair: "--pair-field"})})
    first = next(rows, None)  # check that the column exists before a model is loaded
    return (
        Text(row[field], row["id"].strip() if "id" in row else None, None if pair is None else row[pair])
        for _, row in chain(() if first is None else (first,), rows)
    )


def _records(lines: Iterator[str], suffix: str, name: str) -> Iterator[Text]:
    """Return the sequences of a FASTA or FASTQ file, each with its name as `id`.

    Raises:
        UserError: If a sequence has more than `limits.LINE_CHARACTERS` letters, or the file is malformed.
    """
    from tercet.data.sources.fasta import find_sequence_reader
    from tercet.data.sources.sequence_files import join_records

    read = find_sequence_reader(suffix)
    assert read is not None
    return (Text(record.text, record.record or None) for record in join_records(read(lines, name), name))


def letters_as_trained(texts: Iterator[Text], path: str | None, model: "TrainedModel") -> Iterator[Text]:
    """Return the texts of a FASTA or FASTQ file with letters changed as in the training of `model`.

    If malformed records were left out of the training (`data.sequence_errors: skip`), they are left out here, and
    counted on stderr. Ambiguous letters leave out no record. Other files and stdin are not changed.

    Args:
        texts: Texts of the file.
        path: Path of the file; None or "-" for stdin.
        model: Model whose card contains the settings of `data`.
    """
    from tercet.data.sources.sequence_files import SequenceFile, SequenceSettings, join_records

    settings = model.card.data_settings or {}
    case, ambiguous = settings.get("sequence_case"), settings.get("sequence_ambiguous")
    if path is None or not _has_sequences(path):
        return texts
    skips = settings.get("sequence_errors") == "skip"
    file = SequenceFile(
        path=Path(path),
        settings=SequenceSettings(
            case=case if case in ("upper", "mask") else "keep",
            ambiguous="unknown" if ambiguous == "unknown" else "keep",
            errors="skip" if skips else "strict",
        ),
    )
    if skips:
        if note := file.describe_left_out():
            print_note(f"tercet: {note}")
        return (Text(record.text, record.record or None) for record in join_records(file.pieces(), path))
    return (text._replace(text=text.text.translate(file.changes)) for text in texts)


@contextmanager
def name_records(texts: Sequence[Text], path: str | None, model: "TrainedModel") -> Generator[None]:
    """Add the name of the record to an error about a sequence of a FASTA or FASTQ file that cannot be encoded.

    Args:
        texts: Texts of the file that are used in the context.
        path: Path of the file; None or "-" for stdin.
        model: Model that encodes the texts.
    """
    from tercet.config import UserError

    try:
        yield
    except UserError:
        if path is not None and _has_sequences(path):
            from tercet.data.encode.unknown_text import encode_located

            places = (f"{path}, record {shorten(repr(text.id), 80)}" for text in texts)
            encode_located(model.tokenizer, [text.text for text in texts], places)
        raise


def _has_sequences(path: str) -> bool:
    from tercet.data.sources.fasta import SUFFIXES
    from tercet.data.sources.formats import uncompressed_suffix

    return path != "-" and uncompressed_suffix(Path(path)) in SUFFIXES


def _objects(rows: Iterable[tuple[str, dict[str, object]]], field: str, pair: str | None) -> Iterator[Text]:
    from tercet.data.sources.files import check_unicode, get_text

    for location, row in rows:
        id = row.get("id")
        if isinstance(id, bool) or not isinstance(id, str | int):
            id = None
        elif isinstance(id, str):
            check_unicode(id, location, "id")
        second = None if pair is None else get_text(row, pair, location, "--pair-field")
        yield Text(get_text(row, field, location, "--text-field"), id, second)


def report_truncated(cut: int, max_len: int, *, noun: str = "text") -> None:
    """Report on stderr how many texts were truncated, if any.

    Args:
        cut: Number of truncated texts.
        max_len: Number of tokens to which they were truncated.
        noun: Name of a text in the message, in the singular.
    """
    if cut:
        subject, verb = counted(cut, f"{noun} is", f"{noun}s are"), "was" if cut == 1 else "were"
        print_note(f"tercet: {subject} longer than the context, and {verb} cut to {max_len:,} tokens")

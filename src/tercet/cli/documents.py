"""Folders and documents as texts of a command, and the flags that select how they are read."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tercet.messages import counted, print_note

PROSE_SUFFIXES = (".md", ".markdown", ".rst", ".adoc", ".org", ".tex")  # text files that are rarely lists of lines


def add_documents(add: Callable[..., Any]) -> None:
    """Add the flags --documents and --encoding."""
    add(
        "--documents", choices=("file", "line", "blank_line"),
        help="extent of a text in a text file: the file, a line, or a block between empty lines (default: line, or "
        "file in a folder)",
    )  # fmt: skip
    add("--encoding", metavar="NAME", help="encoding of text files in a folder, or with --documents (default: utf-8)")


def reads_documents(args: argparse.Namespace, path: str | None) -> bool:
    """Return True if a command reads the file or folder at `path` as documents, and not line by line.

    Raises:
        UserError: If flags of documents were passed for lines.
    """
    if not hasattr(args, "documents"):
        return False
    if path is not None and path != "-":
        from tercet.data.sources.formats import DOCUMENT_SUFFIXES, uncompressed_suffix

        suffix = uncompressed_suffix(Path(path))
        if args.documents is not None or Path(path).is_dir() or suffix in DOCUMENT_SUFFIXES:
            return True
        if suffix in PROSE_SUFFIXES and Path(path).is_file():
            print_note(f"tercet: {path} is read line by line; to read it as one text, pass --documents file")
    for flag in ("documents", "encoding"):
        if getattr(args, flag) is not None:
            from tercet.config import UserError

            raise UserError(f"--{flag} applies to folders and documents, and lines must be UTF-8; leave it out")
    return False


def read_document_texts(args: argparse.Namespace, path: str, field: str) -> Iterator[tuple[str, str]]:
    """Return the text and the id of each document of a file or folder; see `DocumentFolder`.

    The files are listed by this call. Files of other formats and documents without text are counted on stderr.

    Args:
        args: Parsed command line.
        path: The file or folder.
        field: JSON key or table column of the text.

    Raises:
        UserError: If there is nothing to read, a package is missing, or flags do not apply; the iterator raises it if
            a file cannot be read.
    """
    from tercet.config import UserError
    from tercet.data.extraction.read_documents import DocumentFolder
    from tercet.data.sources.files import find_path
    from tercet.data.sources.formats import describe_left_out

    if getattr(args, "pair_field", None) is not None:
        raise UserError(f"--pair-field requires a .jsonl file or a table, and {path} is read as documents")
    folder = DocumentFolder(
        root=find_path(path), encoding=_check_encoding(args.encoding), text_field=field,
        documents=args.documents or "file",
    )  # fmt: skip
    files = folder.files()
    if folder.left_out:
        n_files = counted(sum(folder.left_out.values()), "file of another format is", "files of other formats are")
        print_note(f"tercet: {n_files} not read: {describe_left_out(folder.left_out)}")

    def documents() -> Iterator[tuple[str, str]]:
        empty = 0
        for document in folder.read(files):
            empty += not document.text.strip()
            yield document.text, document.id
        if empty:
            print_note(f"tercet: {counted(empty, 'document has', 'documents have')} no text")

    return documents()


def _check_encoding(name: str | None) -> str:
    """Return the encoding, UTF-8 by default. Raises UserError if there is none of this name."""
    from tercet.config import UserError
    from tercet.data.specs import TextSpec

    try:
        return TextSpec(source=".", encoding=name or "utf-8").encoding
    except ValueError as error:
        raise UserError(f"--encoding: {error}") from None

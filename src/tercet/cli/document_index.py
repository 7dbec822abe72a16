"""The documents that `tercet serve` searches: their flags, and the index that is made or opened at the start."""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.cli.chunks import add_chunks, select_chunking
from tercet.cli.documents import add_documents
from tercet.cli.parser import passed_flags
from tercet.cli.texts import Text, add_input, letters_as_trained, read_texts, report_truncated
from tercet.messages import counted, print_note

if TYPE_CHECKING:
    from tercet.checkpoint import TrainedModel
    from tercet.encoding import SearchIndex

PROGRESS_SECONDS = 5  # between lines about the progress


def add_index(add: Callable[..., Any]) -> None:
    """Add the flags of documents to search."""
    add_input(add, "documents to search with /v1/search, by vectors of the first RUN", folders=True)
    add_documents(add)
    add("--vectors", metavar="FILE", type=Path, help=".npz file with vectors to search, written with tercet embed")
    add(
        "--pooling", choices=("mean", "first", "max"),
        help="vector of a document or query: the mean of all token vectors, the first one, or the maximum of each "
        "number (default: as the model folder defines, or mean)",
    )  # fmt: skip
    add_chunks(add)


def open_documents(args: argparse.Namespace, files: ExitStack) -> Iterator[Text] | None:
    """Check the flags, and return the texts of --input, which are opened; None without --input.

    Raises:
        UserError: If flags do not fit together, or a file cannot be read.
    """
    from tercet.config import UserError

    if args.input is not None and args.vectors is not None:
        raise UserError("--input and --vectors exclude each other; pass one of them")
    if args.input is not None:
        return read_texts(args, files)
    if flags := passed_flags(args, ("text_field", "documents", "encoding", "chunk", "overlap", "truncate")):
        raise UserError(f"{flags[0]} applies to --input, which names the documents to search; add it")
    if args.vectors is not None:
        from tercet.encoding.vector_file import read_vectors

        read_vectors(args.vectors)  # to report a missing file before a model is loaded
    elif args.pooling is not None:
        raise UserError("--pooling applies to the documents of --input or --vectors; add one of them")
    return None


def make_index(args: argparse.Namespace, texts: Iterator[Text] | None, trained_model: "TrainedModel") -> "SearchIndex":
    """Return the index that the flags define, and report its size on stderr.

    Args:
        args: Parsed command line.
        texts: Texts of --input, or None to open the file of --vectors.
        trained_model: Model on its device.

    Raises:
        UserError: If a text cannot be read or encoded, no text was found, or the vectors are from another model.
    """
    from tercet.run_encoding import RunEncoding

    run, max_len = RunEncoding(trained_model=trained_model), trained_model.require("embed").text_len
    if texts is None:
        index = run.open_index(args.vectors, pooling=args.pooling)
    else:
        select_chunking(args, max_len)  # its errors name the flags
        documents = _show_progress(letters_as_trained(texts, args.input, trained_model))
        lengths = {"chunk": args.chunk, "overlap": args.overlap, "truncate": args.truncate}
        index = run.index(documents, pooling=args.pooling, **lengths)
    report_truncated(index.truncated, max_len, noun="document")
    count, width = index.vectors.shape
    print_note(
        f"tercet: /v1/search searches {counted(index.documents, 'document', 'documents')} in "
        f"{counted(count, 'vector', 'vectors')} of {width} numbers"
    )
    return index


def _show_progress(texts: Iterable[Text]) -> Iterator[tuple[str | int | None, str]]:
    """Yield the id and the text of each document, and report their number on stderr every few seconds."""
    last = time.monotonic()
    for number, text in enumerate(texts, 1):
        yield text.id, text.text
        if (now := time.monotonic()) - last >= PROGRESS_SECONDS:
            print_note(f"tercet: {counted(number, 'document', 'documents')} read")
            last = now

"""Flags and notes of verbs that split texts that are longer than the context of the model into chunks."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tercet.cli.parser import parse_number
from tercet.messages import counted, print_note
from tercet.spec import Context, Overlap

if TYPE_CHECKING:
    from tercet.encoding import Chunking


def add_chunks(add: Callable[..., Any]) -> None:
    """Add the flags --chunk, --overlap and --truncate."""
    add(
        "--chunk", metavar="N", type=parse_number(Context),
        help="split texts of more than N tokens into chunks of at most N, including the two around a text (default: "
        "the context of the model)",
    )  # fmt: skip
    add(
        "--overlap", metavar="M", type=parse_number(Overlap),
        help="maximum tokens that a chunk shares with the one before it (default: an eighth of the chunk)",
    )  # fmt: skip
    add("--truncate", action="store_true", help="cut long texts to the context instead of splitting them")


def select_chunking(args: argparse.Namespace, max_len: int) -> "Chunking | None":
    """Return the lengths of chunks that the flags define for a model of this context; None for --truncate.

    Raises:
        UserError: If the flags exclude each other, or do not fit the model.
    """
    from tercet.encoding import Chunking

    return Chunking.select(max_len, chunk=args.chunk, overlap=args.overlap, truncate=args.truncate, prefix="--")


@dataclass
class SplitTexts:
    """Number of texts that were split, and of their chunks."""

    texts: int = 0
    chunks: int = 0

    def add(self, chunks: int) -> None:
        """Count a text with this number of chunks; 1 if it was not split."""
        if chunks > 1:
            self.texts += 1
            self.chunks += chunks

    def report(self, size: int, *, noun: str = "text", part: str = "chunk") -> None:
        """Report the numbers on stderr, if any text was split.

        Args:
            size: Maximum number of tokens of a chunk.
            noun: Name of a text, in the singular.
            part: Name of a chunk, in the singular.
        """
        if self.texts:
            subject, verb = counted(self.texts, f"{noun} is", f"{noun}s are"), "was" if self.texts == 1 else "were"
            parts = counted(self.chunks, part, f"{part}s")
            print_note(f"tercet: {subject} longer than {size:,} tokens, and {verb} read in {parts}")

"""FASTA and FASTQ: nucleotides and proteins, a record a document, its lines joined. Its name is no part of the text.

A long sequence comes in pieces whose length every k up to 10 divides, so that k-mers are the same wherever it is cut.
A FASTQ record is four lines, as every sequencer writes it; the qualities are checked for their number and dropped.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from tercet.config import UserError
from tercet.messages import shorten

SequenceCase = Literal["keep", "upper"]
FASTA, FASTQ = (".fa", ".fasta", ".fna", ".ffn", ".faa"), (".fq", ".fastq")
SUFFIXES = (*FASTA, *FASTQ)
PIECE = 24 * 2520  # letters; 2520 is the least that 1, 2, ... and 10 divide

_INVALID_LETTER = re.compile(r"[^A-Za-z*.\-]")  # IUPAC's letters in either case, a stop, a gap
_INVALID_QUALITY = re.compile(r"[^!-~]")


class SequencePiece(NamedTuple):
    """A part of a record's sequence, `last` if the record ends with it; `record` is the first word of its header."""

    text: str
    last: bool
    record: str


def sequence_reader(suffix: str) -> Callable[[Iterable[str], str], Iterator[SequencePiece]] | None:
    """The reader of files with this ending, from the lines and the name of a file; None for other files."""
    return read_fasta if suffix in FASTA else read_fastq if suffix in FASTQ else None


def read_fasta(lines: Iterable[str], name: str) -> Iterator[SequencePiece]:
    """The sequences, piece by piece.

    Raises:
        UserError: where a line stands before the first `>`, a record has no sequence, or one has no letter in it.
    """
    header, record, parts, length = 0, "", list[str](), 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith(">"):
            if header:
                yield SequencePiece(_last(parts, header, name), True, record)
            header, record, parts, length = number, _record_name(text), [], 0
        elif not header and text:
            raise UserError(f"{name} line {number}: a FASTA file begins with a line > and a name; put one there")
        elif text:
            _check_letters(text, number, name)
            parts.append(text)
            length += len(text)
            if length > PIECE:
                whole = "".join(parts)
                yield from (SequencePiece(piece, False, record) for piece in _cut(whole)[:-1])
                parts = _cut(whole)[-1:]
                length = len(parts[0])
    if header:
        yield SequencePiece(_last(parts, header, name), True, record)


def read_fastq(lines: Iterable[str], name: str) -> Iterator[SequencePiece]:
    """The reads that have a letter, piece by piece.

    Raises:
        UserError: where a record is not its four lines, or has not as many qualities as letters.
    """
    numbered_lines = enumerate((line.removesuffix("\r") for line in lines), 1)
    for first, header in numbered_lines:
        if not header.strip():
            continue
        if not header.startswith("@"):
            raise UserError(f"{name} line {first}: a FASTQ record begins with @ and a name; give it four lines")
        (_, sequence), (_, plus), (last, qualities) = (next(numbered_lines, (first, None)) for _ in range(3))
        if sequence is None or plus is None or qualities is None:
            raise UserError(f"{name} line {first}: the last record has not all of its four lines; copy the file again")
        _check_letters(sequence, first + 1, name)
        if not plus.startswith("+"):
            raise UserError(
                f"{name} line {first + 2}: the third line of a FASTQ record begins with +; "
                "write each sequence and its qualities on one line"
            )
        if len(qualities) != len(sequence) or _INVALID_QUALITY.search(qualities):
            raise UserError(
                f"{name} line {last}: {len(qualities):,} qualities (signs from ! to ~) for {len(sequence):,} letters; "
                "give each letter one"
            )
        if sequence:
            pieces = _cut(sequence)
            record = _record_name(header)
            yield from (SequencePiece(piece, number == len(pieces), record) for number, piece in enumerate(pieces, 1))


def _record_name(header: str) -> str:
    return (header[1:].split() or [""])[0]


def _cut(text: str) -> list[str]:
    """Pieces of a sequence, none of them empty."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def _last(parts: list[str], header: int, name: str) -> str:
    if not parts:
        raise UserError(f"{name} line {header}: the record has no sequence; give it one, or leave it out")
    return "".join(parts)


def _check_letters(text: str, number: int, name: str) -> None:
    if invalid := _INVALID_LETTER.search(text):
        raise UserError(
            f"{name} line {number}: {shorten(repr(invalid[0]), 20)} in a sequence at column {invalid.start() + 1}; "
            "it has letters, * and - alone"
        )

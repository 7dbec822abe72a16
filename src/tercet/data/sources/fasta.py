"""FASTA and FASTQ files: each record is a document, with its lines joined and without its name.

Long sequences are read in pieces whose length is divisible by all k up to 10, so that k-mers do not depend on the cuts.
A FASTQ record has four lines. Its qualities are checked, but not read as text.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from tercet.config import UserError
from tercet.messages import shorten

SequenceCase = Literal["keep", "upper"]
FASTA, FASTQ = (".fa", ".fasta", ".fna", ".ffn", ".faa"), (".fq", ".fastq")
SUFFIXES = (*FASTA, *FASTQ)
PIECE = 24 * 2520  # letters; 2520 is the least common multiple of 1 to 10

_INVALID_LETTER = re.compile(r"[^A-Za-z*.\-]")  # valid: IUPAC's letters in either case, a stop, a gap
_INVALID_QUALITY = re.compile(r"[^!-~]")


class SequencePiece(NamedTuple):
    """Part of a sequence. `last` is True at the end of the record; `record` is the first word of its header."""

    text: str
    last: bool
    record: str


def find_sequence_reader(suffix: str) -> Callable[[Iterable[str], str], Iterator[SequencePiece]] | None:
    """Return the function that reads files with this suffix, or None for other suffixes.

    The function takes the lines of a file and its name for messages.
    """
    return read_fasta if suffix in FASTA else read_fastq if suffix in FASTQ else None


def read_fasta(lines: Iterable[str], name: str) -> Iterator[SequencePiece]:
    """Yield the sequences of a FASTA file, piece by piece.

    Raises:
        UserError: If a nonempty line precedes the first `>`, a record has no sequence, or a sequence has an invalid
            character.
    """
    header, record, parts, length = 0, "", list[str](), 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith(">"):
            if header:
                yield SequencePiece(_last(parts, header, name), True, record)
            header, record, parts, length = number, _record_name(text), [], 0
        elif not header and text:
            raise UserError(f"{name} line {number}: a FASTA file starts with a line > and a name; add one")
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
    """Yield the nonempty sequences of a FASTQ file, piece by piece.

    Raises:
        UserError: If a record does not have the four lines of FASTQ (@ and a name, letters, +, qualities), a sequence
            or its qualities have an invalid character, or the numbers of qualities and letters differ.
    """
    numbered_lines = enumerate((line.removesuffix("\r") for line in lines), 1)
    for first, header in numbered_lines:
        if not header.strip():
            continue
        if not header.startswith("@"):
            raise UserError(
                f"{name} line {first}: a FASTQ record starts with @ and a name, and has four lines; correct it"
            )
        (_, sequence), (_, plus), (last, qualities) = (next(numbered_lines, (first, None)) for _ in range(3))
        if sequence is None or plus is None or qualities is None:
            raise UserError(f"{name} line {first}: the last record has fewer than four lines; copy the file again")
        _check_letters(sequence, first + 1, name)
        if not plus.startswith("+"):
            raise UserError(
                f"{name} line {first + 2}: the third line of a FASTQ record starts with +; "
                "write each sequence and its qualities on one line"
            )
        if len(qualities) != len(sequence) or _INVALID_QUALITY.search(qualities):
            raise UserError(
                f"{name} line {last}: {len(qualities):,} qualities (characters from ! to ~) for {len(sequence):,} "
                "letters; write one for each letter"
            )
        if sequence:
            pieces = _cut(sequence)
            record = _record_name(header)
            yield from (SequencePiece(piece, number == len(pieces), record) for number, piece in enumerate(pieces, 1))


def _record_name(header: str) -> str:
    return (header[1:].split() or [""])[0]


def _cut(text: str) -> list[str]:
    """Return the pieces of a sequence, none of them empty."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def _last(parts: list[str], header: int, name: str) -> str:
    if not parts:
        raise UserError(f"{name} line {header}: the record has no sequence; add it, or remove the record")
    return "".join(parts)


def _check_letters(text: str, number: int, name: str) -> None:
    if invalid := _INVALID_LETTER.search(text):
        raise UserError(
            f"{name} line {number}: {shorten(repr(invalid[0]), 20)} in a sequence at column {invalid.start() + 1}; "
            "only letters, '*', '.' and '-' are valid"
        )

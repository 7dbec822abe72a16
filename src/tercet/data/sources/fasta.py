"""FASTA and FASTQ files: each record is a document, with its lines joined and without its name.

Long sequences are read in pieces whose length is divisible by all k up to 10, so that k-mers do not depend on the cuts.
A FASTQ record has four lines. Its qualities are checked, but not read as text.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from tercet.config import UserError
from tercet.messages import shorten

FASTA, FASTQ = (".fa", ".fasta", ".fna", ".ffn", ".faa"), (".fq", ".fastq")
SUFFIXES = (*FASTA, *FASTQ)
PIECE = 24 * 2520  # letters; 2520 is the least common multiple of 1 to 10

_INVALID_LETTER = re.compile(r"[^A-Za-z*.\-]")  # valid: IUPAC's letters in either case, a stop, a gap
_INVALID_QUALITY = re.compile(r"[^!-~]")


class SequencePiece(NamedTuple):
    """Part of a sequence.

    Attributes:
        text: Letters.
        last: True at the end of the record.
        record: Name of the record, which is the first word of its header.
        header: Header without its first character.
        line: Number of the header's line, from 1.
    """

    text: str
    last: bool
    record: str
    header: str
    line: int


class RecordFault(NamedTuple):
    """Reason why a record cannot be read.

    Attributes:
        line: Number of the line with the fault, from 1.
        header_line: Number of the header's line; 0 if the file does not start with a header.
        record: Name of the record.
        problem, remedy: Parts of a message.
    """

    line: int
    header_line: int
    record: str
    problem: str
    remedy: str


Report = Callable[[RecordFault], None]


class SequenceReader(Protocol):
    """Function that yields the sequences in the lines of a file, piece by piece.

    `name` is the name of the file in messages. `report` is called for each record that cannot be read. If it returns,
    the rest of the record is skipped; pieces before the fault have already been yielded. By default it raises
    UserError.
    """

    def __call__(self, lines: Iterable[str], name: str, report: Report | None = None) -> Iterator[SequencePiece]: ...


def find_sequence_reader(suffix: str) -> SequenceReader | None:
    """Return the function that reads files with this suffix, or None for other suffixes."""
    return read_fasta if suffix in FASTA else read_fastq if suffix in FASTQ else None


def read_fasta(lines: Iterable[str], name: str, report: Report | None = None) -> Iterator[SequencePiece]:
    """Yield the sequences of a FASTA file, piece by piece. Arguments as in `SequenceReader`.

    Raises:
        UserError: If a nonempty line precedes the first `>`. By default also if a record has no sequence, or a sequence
            has an invalid character.
    """
    report = report or _raise_fault(name)
    header, record, start, parts, length, is_faulty = "", "", 0, list[str](), 0, False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith(">"):
            if start and not is_faulty:
                yield from _last_piece(parts, header, start, report)
            header, start, parts, length, is_faulty = text[1:], number, [], 0, False
            record = _record_name(header)
        elif not start and text:
            raise UserError(f"{name} line {number}: a FASTA file starts with a line > and a name; add one")
        elif text and not is_faulty:
            if fault := _letter_fault(text, number, start, record):
                report(fault)
                is_faulty = True
                continue
            parts.append(text)
            length += len(text)
            if length > PIECE:
                whole = "".join(parts)
                yield from (SequencePiece(piece, False, record, header, start) for piece in _cut(whole)[:-1])
                parts = _cut(whole)[-1:]
                length = len(parts[0])
    if start and not is_faulty:
        yield from _last_piece(parts, header, start, report)


def read_fastq(lines: Iterable[str], name: str, report: Report | None = None) -> Iterator[SequencePiece]:
    """Yield the nonempty sequences of a FASTQ file, piece by piece. Arguments as in `SequenceReader`.

    Raises:
        UserError: If the first nonempty line does not start with `@`. By default also if a record does not have the
            four lines of FASTQ (@ and a name, letters, +, qualities), a sequence or its qualities have an invalid
            character, or the numbers of qualities and letters differ.
    """
    report = report or _raise_fault(name)
    numbered_lines = enumerate((line.removesuffix("\r") for line in lines), 1)
    pending = deque[tuple[int, str]]()  # lines that are read again
    is_first, is_searching = True, False  # searching for the next header after a fault
    while row := pending.popleft() if pending else next(numbered_lines, None):
        start, header = row
        if not header.strip() or (is_searching and not header.startswith("@")):
            continue
        if not header.startswith("@"):
            problem = "a FASTQ record starts with @ and a name, and has four lines"
            if is_first:
                raise UserError(f"{name} line {start}: {problem}; correct it")
            report(RecordFault(start, start, "", problem, "correct it"))
            is_searching = True
            continue
        is_first, record = False, _record_name(header[1:])
        body = [pending.popleft() if pending else next(numbered_lines, None) for _ in range(3)]
        body_lines = [row for row in body if row is not None]
        if fault := _fastq_fault(start, record, body_lines):
            report(fault)
            is_searching = True
            if not (len(body_lines) == 3 and body_lines[1][1].startswith("+")):  # a line is missing, or there are more
                headers = [number for number, (_, line) in enumerate(body_lines) if line.startswith("@")]
                pending.extendleft(reversed(body_lines[headers[0] :] if headers else []))
            continue
        is_searching = False
        if sequence := body_lines[0][1]:
            pieces = _cut(sequence)
            for number, piece in enumerate(pieces, 1):
                yield SequencePiece(piece, number == len(pieces), record, header[1:], start)


def _raise_fault(name: str) -> Report:
    def report(fault: RecordFault) -> None:
        raise UserError(f"{name} line {fault.line}: {fault.problem}; {fault.remedy}")

    return report


def _fastq_fault(start: int, record: str, body: list[tuple[int, str]]) -> RecordFault | None:
    """Return the fault of a record with up to three numbered lines after its header, or None."""
    if len(body) < 3:
        problem = "the last record has fewer than four lines"
        return RecordFault(start, start, record, problem, "copy the file again")
    (letters_line, sequence), (plus_line, plus), (last, qualities) = body
    if fault := _letter_fault(sequence, letters_line, start, record):
        return fault
    if not plus.startswith("+"):
        remedy = "write each sequence and its qualities on one line"
        return RecordFault(plus_line, start, record, "the third line of a FASTQ record starts with +", remedy)
    if len(qualities) != len(sequence) or _INVALID_QUALITY.search(qualities):
        problem = f"{len(qualities):,} qualities (characters from ! to ~) for {len(sequence):,} letters"
        return RecordFault(last, start, record, problem, "write one for each letter")
    return None


def _record_name(header: str) -> str:
    return (header.split() or [""])[0]


def _cut(text: str) -> list[str]:
    """Return the pieces of a sequence, none of them empty."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def _last_piece(parts: list[str], header: str, start: int, report: Report) -> Iterator[SequencePiece]:
    record = _record_name(header)
    if parts:
        yield SequencePiece("".join(parts), True, record, header, start)
    else:
        report(RecordFault(start, start, record, "the record has no sequence", "add it, or remove the record"))


def _letter_fault(text: str, number: int, start: int, record: str) -> RecordFault | None:
    if invalid := _INVALID_LETTER.search(text):
        problem = f"{shorten(repr(invalid[0]), 20)} in a sequence at column {invalid.start() + 1}"
        return RecordFault(number, start, record, problem, "only letters, '*', '.' and '-' are valid")
    return None

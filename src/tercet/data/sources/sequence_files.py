"""A FASTA or FASTQ file with the settings for its letters and records.

If records may be left out, the file is read twice: first to find these records, and then to yield the others. Memory
use is therefore bounded for sequences of any length.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from tercet import limits
from tercet.config import UserError
from tercet.data.sources.fasta import RecordFault, Report, SequencePiece, find_sequence_reader
from tercet.data.sources.files import Errors, read_lines
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.sequence_letters import (
    SequenceAmbiguous,
    SequenceCase,
    SequenceKind,
    guess_kind,
    has_ambiguous_letters,
    letter_changes,
)
from tercet.messages import counted, shorten

SequenceErrors = Literal["strict", "skip"]
SAMPLE_LETTERS = 1 << 16  # letters from which the kind of the sequences is guessed
SHOWN_FAULTS = 3  # maximum number of faults in a message


@dataclass(frozen=True, kw_only=True)
class SequenceSettings:
    """Settings for the letters and records of FASTA and FASTQ files, as in `TextSpec`."""

    case: SequenceCase = "keep"
    ambiguous: SequenceAmbiguous = "keep"
    errors: SequenceErrors = "strict"

    @property
    def leaves_out(self) -> bool:
        """True if records may be left out."""
        return self.errors == "skip" or self.ambiguous == "drop"


UNCHANGED = SequenceSettings()  # all letters as in the file, and all records


class LeftOutRecords(NamedTuple):
    """Records of a file that cannot be read, or that are left out because of ambiguous letters.

    Attributes:
        records: Number of all records.
        malformed: Number of records that cannot be read.
        faults: First `SHOWN_FAULTS` reasons.
        ambiguous: Number of other records that are left out because of ambiguous letters.
        lines: Numbers of the lines with the headers of these records.
    """

    records: int
    malformed: int
    faults: tuple[RecordFault, ...]
    ambiguous: int
    lines: frozenset[int]

    @property
    def description(self) -> str:
        """Description of the malformed records for a message, such as "2 of 9 records cannot be read: ..."."""
        shown = [
            f"{f'record {shorten(repr(fault.record), 60)}, ' if fault.record else ''}line {fault.line}: {fault.problem}"
            for fault in self.faults
        ]
        more = f", and {self.malformed - len(shown):,} more" if self.malformed > len(shown) else ""
        n_records = counted(self.records, "record", "records")
        return f"{self.malformed:,} of {n_records} cannot be read: {', '.join(shown)}{more}"


@dataclass(frozen=True, kw_only=True)
class SequenceFile:
    """A FASTA or FASTQ file.

    Attributes:
        path: Path of the file, which may be compressed.
        encoding: Encoding of the file.
        errors: As in `read_text`.
        settings: Settings for letters and records.
        find_header_problem: Function that returns the problem of a header, such as a missing label, or "". Records with
            such a header are malformed; None accepts all headers.
        header_remedy: Remedy of such a problem, for messages.
    """

    path: Path
    encoding: str = "utf-8"
    errors: Errors = "strict"
    settings: SequenceSettings = UNCHANGED
    find_header_problem: Callable[[str], str] | None = None
    header_remedy: str = ""

    def pieces(self) -> Iterator[SequencePiece]:
        """Yield the sequences, piece by piece, with changed letters and without the records that are left out.

        Raises:
            UserError: If the file cannot be read, or records are malformed and are not skipped; the message counts
                them and contains the names and lines of the first ones.
        """
        settings = self.settings
        left_out = self.find_left_out() if settings.leaves_out else None
        if left_out is not None and left_out.malformed and settings.errors == "strict":
            raise self._malformed_error(left_out)
        skipped = frozenset[int]() if left_out is None else left_out.lines
        changes = self.changes
        for piece in self._read(self._reject if left_out is None else _ignore):
            if piece.line not in skipped:
                yield piece._replace(text=piece.text.translate(changes)) if changes else piece

    def find_left_out(self) -> LeftOutRecords:
        """Read the whole file, and return the records that cannot be read or are left out by `ambiguous`."""
        faults, lines, n_read = list[RecordFault](), set[int](), 0
        ambiguous_lines, drops, changes = set[int](), self.settings.ambiguous == "drop", self.changes

        def report(fault: RecordFault) -> None:
            if fault.header_line not in lines and len(faults) < SHOWN_FAULTS:
                faults.append(fault)
            lines.add(fault.header_line)

        for piece in self._read(report):
            n_read += piece.last
            if drops and has_ambiguous_letters(piece.text.translate(changes), self.kind):
                ambiguous_lines.add(piece.line)
        ambiguous_lines -= lines
        return LeftOutRecords(
            records=n_read + len(lines),
            malformed=len(lines),
            faults=tuple(faults),
            ambiguous=len(ambiguous_lines),
            lines=frozenset(lines | ambiguous_lines),
        )

    def describe_left_out(self) -> str:
        """Return a note on the records that are left out, or "" if there are none."""
        left_out = self.find_left_out()
        n_ambiguous = counted(left_out.ambiguous, "record has", "records have")
        facts = [
            *([left_out.description] if left_out.malformed else []),
            *([f"{n_ambiguous} ambiguous letters"] if left_out.ambiguous else []),
        ]
        return f"{self.path}: left out: {'; '.join(facts)}" if facts else ""

    @cached_property
    def kind(self) -> SequenceKind:
        """Kind of the sequences: protein for `.faa`, and otherwise guessed from the first letters of the file."""
        if uncompressed_suffix(self.path) == ".faa":
            return "protein"
        counts = Counter[str]()
        for piece in self._read(_ignore):
            counts.update(piece.text)
            if counts.total() >= SAMPLE_LETTERS:
                break
        return guess_kind(counts)

    @cached_property
    def changes(self) -> dict[int, str]:
        """Table of changed letters; empty if no letter changes."""
        settings = self.settings
        if settings.case != "mask" and settings.ambiguous != "unknown":
            return {} if settings.case == "keep" else letter_changes("DNA", settings.case, settings.ambiguous)
        return letter_changes(self.kind, settings.case, settings.ambiguous)

    def _read(self, report: Report) -> Iterator[SequencePiece]:
        read = find_sequence_reader(uncompressed_suffix(self.path))
        assert read is not None
        pieces = read(read_lines(self.path, self.encoding, self.errors), str(self.path), report)
        return pieces if self.find_header_problem is None else self._with_valid_headers(pieces, report)

    def _with_valid_headers(self, pieces: Iterable[SequencePiece], report: Report) -> Iterator[SequencePiece]:
        assert self.find_header_problem is not None
        line, problem = 0, ""
        for piece in pieces:
            if piece.line != line:
                line, problem = piece.line, self.find_header_problem(piece.header)
                if problem:
                    report(RecordFault(line, line, piece.record, problem, self.header_remedy))
            if not problem:
                yield piece

    def _reject(self, fault: RecordFault) -> None:
        raise self._malformed_error(self.find_left_out())

    def _malformed_error(self, left_out: LeftOutRecords) -> UserError:
        remedies = {fault.remedy for fault in left_out.faults}
        remedy = left_out.faults[0].remedy if len(remedies) == 1 else "correct them"
        return UserError(
            f"{self.path}: {left_out.description}; {remedy}, or set data.sequence_errors: skip to leave out such "
            "records"
        )


def join_records(pieces: Iterable[SequencePiece], name: str) -> Iterator[SequencePiece]:
    """Yield each record as one piece.

    Args:
        pieces: Pieces of the records.
        name: Name of the file in messages.

    Raises:
        UserError: If a sequence has more than `limits.LINE_CHARACTERS` letters.
    """
    parts, length = list[str](), 0
    for piece in pieces:
        parts.append(piece.text)
        length += len(piece.text)
        if length > limits.LINE_CHARACTERS:
            raise UserError(
                f"{name}, record {piece.record!r} has more than {limits.LINE_CHARACTERS:,} letters; "
                "split it into several records"
            )
        if piece.last:
            yield piece._replace(text="".join(parts))
            parts, length = [], 0


def _ignore(fault: RecordFault) -> None:
    """Continue with the next record."""

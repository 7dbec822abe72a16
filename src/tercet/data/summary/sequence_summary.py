"""Summary of FASTA and FASTQ files: kind, composition, GC content, ambiguous and masked letters, malformed records."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tercet.data.sources.sequence_files import SequenceFile
from tercet.data.sources.sequence_letters import AMBIGUOUS, SequenceKind, guess_kind


@dataclass(frozen=True, kw_only=True)
class SequenceSummary:
    """Summary of biological sequences. Shares are those of all characters.

    Attributes:
        kind: Kind of the sequences, guessed from the composition, or protein if all files have the suffix .faa.
        composition: Share of each character, most frequent first. Lower-case letters are counted as upper-case ones.
        gc: Share of G and C among the letters A, C, G, T and U; None for proteins, or if there are no such letters.
        ambiguous: Share of IUPAC's ambiguity codes, such as N, in either case.
        lowercase: Share of lower-case letters (soft masking).
        malformed: Number of records that cannot be read. They are not counted elsewhere.
        malformed_records: Descriptions of the malformed records of each file.
        dropped: Number of records that are left out because of `data.sequence_ambiguous`.
    """

    kind: SequenceKind
    composition: dict[str, float]
    gc: float | None
    ambiguous: float
    lowercase: float
    malformed: int = 0
    malformed_records: tuple[str, ...] = ()
    dropped: int = 0


def summarize_sequences(counts: Mapping[str, int], files: Iterable[SequenceFile]) -> SequenceSummary:
    """Return the summary of sequences.

    Args:
        counts: Number of occurrences of each character in all sequences.
        files: Files of the sequences.
    """
    sequence_files = list(files)
    total = max(1, sum(counts.values()))
    composition = dict[str, int]()
    for character, count in counts.items():
        composition[character.upper()] = composition.get(character.upper(), 0) + count
    is_protein = all(file.kind == "protein" for file in sequence_files) and bool(sequence_files)
    kind = "protein" if is_protein else guess_kind(counts)
    gc_letters, bases = (sum(composition.get(letter, 0) for letter in letters) for letters in ("GC", "ACGTU"))
    left_out = [(file, file.find_left_out()) for file in sequence_files]
    return SequenceSummary(
        kind=kind,
        composition={
            letter: count / total for letter, count in sorted(composition.items(), key=lambda item: (-item[1], item[0]))
        },
        gc=None if kind == "protein" or not bases else gc_letters / bases,
        ambiguous=sum(composition.get(letter, 0) for letter in AMBIGUOUS[kind]) / total,
        lowercase=sum(count for letter, count in counts.items() if letter.islower()) / total,
        malformed=sum(records.malformed for _, records in left_out),
        malformed_records=tuple(
            f"{file.path.name}: {records.description}" for file, records in left_out if records.malformed
        ),
        dropped=sum(records.ambiguous for _, records in left_out),
    )

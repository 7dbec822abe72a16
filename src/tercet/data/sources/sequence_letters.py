"""Letters of biological sequences: kinds of sequences, ambiguity codes, complements, and changes of letters.

The codes are those of IUPAC (Cornish-Bowden 1985 for nucleotides). N and X stand for any nucleotide and amino acid.
"""

from collections.abc import Mapping
from typing import Literal

SequenceKind = Literal["DNA", "RNA", "protein"]
SequenceCase = Literal["keep", "upper", "mask"]
SequenceAmbiguous = Literal["keep", "unknown", "drop"]

AMBIGUOUS: dict[SequenceKind, str] = {"DNA": "RYSWKMBDHVNX", "RNA": "RYSWKMBDHVNX", "protein": "BJXZ"}
UNKNOWN: dict[SequenceKind, str] = {"DNA": "N", "RNA": "N", "protein": "X"}
GAPS = "-."  # valid in both strands
COMPLEMENTS = dict(zip("ACGTURYSWKMBDHVN", "TGCAAYRSWMKVHDBN", strict=True))  # of U and T; that of A is T or U
NUCLEOTIDE_SHARE = 0.8  # minimum share of A, C, G, T, U and N among the letters of nucleotides; about 0.26 in proteins


def guess_kind(counts: Mapping[str, int]) -> SequenceKind:
    """Return the kind of sequences with these numbers of characters; DNA if there are no letters."""
    letters = dict[str, int]()
    for character, count in counts.items():
        if character.isalpha():
            letters[character.upper()] = letters.get(character.upper(), 0) + count
    nucleotides = sum(letters.get(letter, 0) for letter in "ACGTUN")
    if nucleotides < NUCLEOTIDE_SHARE * sum(letters.values()):
        return "protein"
    return "RNA" if letters.get("U", 0) > letters.get("T", 0) else "DNA"


def letter_changes(kind: SequenceKind, case: SequenceCase, ambiguous: SequenceAmbiguous) -> dict[int, str]:
    """Return the table for `str.translate` that changes the letters of a sequence.

    Args:
        kind: Kind of the sequence.
        case: `upper` converts lower-case letters, and `mask` replaces them with the unknown letter of the kind.
        ambiguous: `unknown` replaces ambiguity codes with the unknown letter, in the same case. Others change nothing.
    """
    unknown, codes, table = UNKNOWN[kind], AMBIGUOUS[kind], dict[int, str]()
    for letter in map(chr, range(ord("A"), ord("Z") + 1)):
        upper = unknown if ambiguous == "unknown" and letter in codes else letter
        lower = {"keep": upper.lower(), "upper": upper, "mask": unknown}[case]
        table[ord(letter)], table[ord(letter.lower())] = upper, lower
    return table


def has_ambiguous_letters(text: str, kind: SequenceKind) -> bool:
    """Return True if a text contains an ambiguity code of the kind, in either case."""
    return not set(text.upper()).isdisjoint(AMBIGUOUS[kind])

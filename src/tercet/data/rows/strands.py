"""Reverse complements of rows: the other strand of DNA or RNA, as augmentation.

Each run of letters between special tokens is reversed and complemented in place, so that special tokens, padding and
the positions of the documents do not change. Applied twice, the operation returns the original row.
"""

from functools import lru_cache

import numpy as np

from tercet.config import UserError
from tercet.data.sources.sequence_letters import COMPLEMENTS, GAPS
from tercet.tokens import Tokenizer


class Strands:
    """The other strand of rows of ids.

    Attributes:
        complements: (V,) id of the complement of each letter, and -1 for special tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Find the complements in the vocabulary.

        Raises:
            UserError: If the tokenizer is not of the kind characters, a token is not a nucleotide, the vocabulary has
                both T and U, or it lacks a complement.
        """
        self.complements = np.full(tokenizer.vocab_size, -1, dtype=np.int64)
        if tokenizer.kind != "characters":
            raise UserError(
                f"data.reverse_complement requires one token per nucleotide, not the tokenizer {tokenizer.kind}; set "
                "data.tokenizer.kind to characters, or data.reverse_complement to false"
            )
        numbers = [number for number in range(tokenizer.vocab_size) if number not in tokenizer.special_ids]
        letters = {letter: number for number, letter in zip(numbers, tokenizer.tokens(numbers), strict=True)}
        for letter, number in letters.items():
            self.complements[number] = letters[_find_complement(letter, letters)]

    def reverse(
        self, tokens: np.ndarray, chosen: np.ndarray, *, mask: np.ndarray | None = None,
        documents: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return rows of which the chosen ones are reverse complements.

        Args:
            tokens: (B, T) int64 ids.
            chosen: (B,) bool, True at the rows to change.
            mask: (B, T) bool, True at real tokens; None if all are real.
            documents: (B, T) number of each token's document, between which a run ends; None if unknown.

        Returns:
            (B, T) int64 ids.
        """
        complements = self.complements[tokens]  # (B, T)
        is_letter = complements >= 0 if mask is None else (complements >= 0) & mask
        if not chosen.any() or not tokens.size:
            return tokens
        starts = np.ones(tokens.shape, dtype=bool)  # positions at which a run starts, also runs of other tokens
        starts[:, 1:] = is_letter[:, 1:] != is_letter[:, :-1]
        if documents is not None:
            starts[:, 1:] |= documents[:, 1:] != documents[:, :-1]
        first = np.flatnonzero(starts)  # (R,) in the concatenated rows
        run = np.cumsum(starts) - 1  # (B T,)
        ends = np.append(first[1:], tokens.size)
        mirrored = first[run] + ends[run] - 1 - np.arange(tokens.size)
        reversed_rows = complements.ravel()[mirrored].reshape(tokens.shape)
        return np.where(is_letter & chosen[:, None], reversed_rows, tokens)


def choose_strands(numbers: np.ndarray, epochs: np.ndarray, *, n_rows: int, seed: int) -> np.ndarray:
    """Return whether rows are read from the other strand, as a function of the seed, the epoch and the row.

    Args:
        numbers: (B,) numbers of the rows.
        epochs: (B,) epoch of each row.
        n_rows: Rows per epoch.
        seed: Seed of the run.

    Returns:
        (B,) bool.
    """
    chosen = np.empty(len(numbers), dtype=bool)
    for epoch in np.unique(epochs).tolist():
        in_epoch = epochs == epoch
        chosen[in_epoch] = _draw_strands(n_rows, seed, epoch)[numbers[in_epoch]]
    return chosen


@lru_cache(maxsize=2)  # except for tiny data, a batch spans at most two epochs
def _draw_strands(n_rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch, 5, 1]).integers(2, size=n_rows, dtype=np.int8).astype(bool)


def _find_complement(letter: str, letters: dict[str, int]) -> str:
    """Return the complement of a letter in the vocabulary `letters`.

    Raises:
        UserError: If there is none, or the letter is not a nucleotide.
    """
    if letter in GAPS:
        return letter
    upper = letter.upper()
    if len(letter) != 1 or upper not in COMPLEMENTS:
        raise UserError(
            f"data.reverse_complement requires DNA or RNA, but the vocabulary has {letter!r}; set it to false for "
            "proteins, or data.tokenizer.alphabet to nucleotides such as ACGTN"
        )
    has_uracil = not {"U", "u"}.isdisjoint(letters)
    if has_uracil and not {"T", "t"}.isdisjoint(letters):
        raise UserError(
            "data.reverse_complement requires DNA or RNA, but the vocabulary has both T and U; replace one in the data"
        )
    complement = "U" if upper == "A" and has_uracil else COMPLEMENTS[upper]
    complement = complement if letter.isupper() else complement.lower()
    if complement not in letters:
        raise UserError(
            f"data.reverse_complement: the vocabulary has {letter!r}, but not its complement {complement!r}; set "
            "data.sequence_ambiguous to unknown, or add it to data.tokenizer.alphabet"
        )
    return complement

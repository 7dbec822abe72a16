"""Rows of unequal length in batches of at most N tokens, padding included, and their answers back in order.

A batch costs rows · longest row, so rows of like length belong together. What becomes of a row must not depend on the
rows beside it; then batches are nothing but a question of memory and time.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import TypeVar

import numpy as np

BATCH_TOKENS = 16_384

Result = TypeVar("Result")


def cut_batches(lengths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Where batches of rows (N,) in their given order begin, and the end: each takes as many rows as it can.

    Args:
        lengths: (N,) tokens of each row.
        batch_tokens: the most tokens of a batch, padding included; a row that is longer stands alone.

    Raises:
        ValueError: for `batch_tokens` below 1.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens={batch_tokens} must be 1 or more")
    cuts = [0]
    while cuts[-1] < len(lengths):
        first = cuts[-1]
        ahead = lengths[first : first + max(1, batch_tokens // max(1, int(lengths[first])))]
        cost = np.arange(1, len(ahead) + 1) * np.maximum.accumulate(ahead)
        cuts.append(first + max(1, int(np.searchsorted(cost, batch_tokens, side="right"))))
    return np.array(cuts)


def batch_by_length(lengths: Sequence[int] | np.ndarray, batch_tokens: int = BATCH_TOKENS) -> list[list[int]]:
    """Numbers of rows of like length together, the longest first: what does not fit into memory fails at once.

    Arguments and errors as in `cut_batches`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    cuts = cut_batches(lengths[order], batch_tokens)
    return [batch.tolist() for batch in np.split(order, cuts[1:-1]) if len(batch)]


def map_by_length(
    function: Callable[[list[int]], Sequence[Result]],
    lengths: Sequence[int] | np.ndarray,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Result]:
    """One answer for each row, in the order of the rows.

    Args:
        function: takes the numbers of a batch's rows, and returns an answer for each of them.
        lengths, batch_tokens: as in `cut_batches`.
    """
    results = dict[int, Result]()
    for numbers in batch_by_length(lengths, batch_tokens):
        results.update(zip(numbers, function(numbers), strict=True))
    return [results[number] for number in range(len(lengths))]


def cut_rows(numbers: np.ndarray, n_batches: int) -> list[np.ndarray]:
    """Rows in so many batches of nearly equal size, none of them empty."""
    return np.array_split(numbers, max(1, min(n_batches, len(numbers))))


def cut_share(numbers: np.ndarray, *, rank: int, world: int) -> np.ndarray:
    """Rank `rank`'s share of a step's rows: one of `world` pieces in their order, so that what two ranks take in a row
    is what one rank of half as many takes."""
    return np.array_split(numbers, world)[rank]


def deal_micro_batches(
    numbers: np.ndarray, lengths: np.ndarray, *, size: int, rank: int, world: int
) -> list[np.ndarray]:
    """Rank `rank`'s micro-batches of a step's rows (N,), which have these lengths (N,): at most `size` rows each.

    Each half of the step's micro-batches, each quarter and so on is about as long as the others, so that ranks, which
    take a piece each, wait little for each other: they lie in the order of their numbers' binary digits backwards.
    """
    n_batches = world * ceil(len(numbers) / world / size)
    micro_batches = np.array_split(numbers[np.argsort(lengths, kind="stable")], n_batches)
    digits = (n_batches & -n_batches).bit_length() - 1  # the last binary digits, of which each occurs equally often
    backwards = [int(f"{n:0{digits}b}"[::-1], 2) for n in range(1 << digits)]
    order = np.concatenate([np.arange(first, n_batches, 1 << digits) for first in backwards])
    return [micro_batches[place] for place in cut_share(order, rank=rank, world=world)]

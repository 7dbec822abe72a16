"""Batches of rows of similar length, and results in the original order.

The cost of a batch is its number of rows times its longest row, so rows of similar length belong together. The result
of a row must not depend on the other rows of its batch, so that batching affects only memory and time.
"""

from collections.abc import Callable, Sequence
from math import ceil
from typing import TypeVar

import numpy as np

BATCH_TOKENS = 16_384  # default maximum per batch, including padding

Result = TypeVar("Result")


def cut_batches(lengths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Cut rows into consecutive batches, each with as many rows as possible.

    Args:
        lengths: (N,) number of tokens of each row.
        batch_tokens: Maximum number of tokens per batch, including padding. A longer row forms its own batch.

    Returns:
        (n + 1,) start of each batch, and the end of the last one.

    Raises:
        ValueError: If `batch_tokens` is below 1.
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
    """Return batches of row numbers of similar length, the longest first so that memory errors show early.

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
    """Apply a function to batches of rows of similar length, and return one result per row, in the order of the rows.

    Args:
        function: Function that receives the numbers of a batch's rows and returns one result for each.
        lengths, batch_tokens: As in `cut_batches`.
    """
    results = dict[int, Result]()
    for numbers in batch_by_length(lengths, batch_tokens):
        results.update(zip(numbers, function(numbers), strict=True))
    return [results[number] for number in range(len(lengths))]


def cut_rows(numbers: np.ndarray, n_batches: int) -> list[np.ndarray]:
    """Cut row numbers into `n_batches` batches of nearly equal size, or fewer if some would be empty."""
    return np.array_split(numbers, max(1, min(n_batches, len(numbers))))


def cut_share(numbers: np.ndarray, *, rank: int, world: int) -> np.ndarray:
    """Return the row numbers of a step that rank `rank` of `world` trains on: one of `world` consecutive pieces.

    If `world` is even and divides the number of rows, ranks 2r and 2r + 1 together have the rows that rank r has in a
    group of half the size.
    """
    return np.array_split(numbers, world)[rank]


def deal_micro_batches(
    numbers: np.ndarray, lengths: np.ndarray, *, size: int, rank: int, world: int
) -> list[np.ndarray]:
    """Return the micro-batches of rank `rank`, of at most `size` rows each.

    The step's micro-batches are sorted by length and then reordered by the reversed bits of their index, so that each
    half, quarter and so on of the step is about equally long and ranks wait little for each other.

    Args:
        numbers: (N,) numbers of the rows of a step.
        lengths: (N,) length of each row.
        size: Maximum number of rows per micro-batch.
        rank: Number of the rank.
        world: Number of ranks.
    """
    n_batches = world * ceil(len(numbers) / world / size)
    micro_batches = np.array_split(numbers[np.argsort(lengths, kind="stable")], n_batches)
    digits = (n_batches & -n_batches).bit_length() - 1  # low bits of an index, whose values occur equally often
    backwards = [int(f"{n:0{digits}b}"[::-1], 2) for n in range(1 << digits)]
    order = np.concatenate([np.arange(first, n_batches, 1 << digits) for first in backwards])
    return [micro_batches[place] for place in cut_share(order, rank=rank, world=world)]

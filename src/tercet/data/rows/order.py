"""Which rows make up which batch: a pure function of the step, so that a resumed run goes on exactly where it was.

Epochs are laid end to end, each a permutation of all rows, and step s takes the numbers s·B ... s·B + B - 1 of that
line. A batch may hold the end of one epoch and the start of the next. Another `Layout` may take a permutation's place.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np


class Layout(Protocol):
    """How the rows of an epoch follow each other."""

    @property
    def n_rows(self) -> int: ...

    def rows(self, positions: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Of positions (B,) in the line of all epochs, in rising order, the row (B,) that stands at each, and the epoch
        (B,) of that row: a function of (seed, position)."""
        ...


@dataclass(frozen=True)
class ShuffledLayout:
    """Each epoch a permutation of all rows."""

    n_rows: int

    def rows(self, positions: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        epochs, index = np.divmod(positions, self.n_rows)
        numbers = np.empty_like(index)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            epoch_mask = epochs == epoch
            numbers[epoch_mask] = _permutation(self.n_rows, seed, epoch)[index[epoch_mask]]
        return numbers, epochs


@dataclass(frozen=True)
class Order:
    """The order of `n_rows` rows in batches of `batch_size`, drawn from `seed`."""

    n_rows: int
    batch_size: int
    seed: int = 0
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.n_rows < 1 or self.batch_size < 1 or self.seed < 0:
            raise ValueError(
                f"need n_rows >= 1, batch_size >= 1, seed >= 0; got {self.n_rows}, {self.batch_size}, {self.seed}"
            )

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers (batch_size,) of batch `step`, counted from 0, and the epoch (batch_size,) of each."""
        position = step * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        return (self.layout or ShuffledLayout(self.n_rows)).rows(position, self.seed)

    def shift(self, epoch: int, length: int) -> int:
        """By how many tokens, 0 <= shift < length, packed windows are moved in `epoch`: each epoch cuts elsewhere."""
        return int(np.random.default_rng([self.seed, epoch, 1]).integers(length))


@lru_cache(maxsize=2)  # a batch spans two epochs at most, but for tiny data
def _permutation(n_rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(n_rows)

"""Order of rows in batches, as a pure function of the step.

A resumed run therefore continues with exactly the same batches. The epochs, each a permutation of all rows, form one
sequence of positions. With batches of B rows, step s takes the positions s·B to s·B + B - 1, so a batch may contain the
end of one epoch and the start of the next. A `Layout` may replace the permutation.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np


class Layout(Protocol):
    """Order of the rows in the sequence of epochs."""

    @property
    def n_rows(self) -> int: ...

    def rows(self, positions: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the row number (B,) and the epoch (B,) at each of `positions` (B,), which must be increasing.

        Positions count over all epochs. The result is a function of (seed, position).
        """
        ...


@dataclass(frozen=True)
class ShuffledLayout:
    """Layout in which each epoch is a random permutation of all rows."""

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
    """Order of `n_rows` rows in batches of `batch_size`, drawn from `seed`.

    Attributes:
        layout: Order of the rows in the sequence of epochs, or None for a permutation of all rows in each epoch.
    """

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
        """Return the row numbers (batch_size,) of batch `step`, from 0, and the epoch of each row."""
        position = step * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        return (self.layout or ShuffledLayout(self.n_rows)).rows(position, self.seed)

    def shift(self, epoch: int, length: int) -> int:
        """Return the offset in tokens, 0 <= shift < length, by which the cuts of packed rows move in `epoch`."""
        return int(np.random.default_rng([self.seed, epoch, 1]).integers(length))


@lru_cache(maxsize=2)  # except for tiny data, a batch spans at most two epochs
def _permutation(n_rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(n_rows)

"""Several arrays, one after another, that are read as one: no more of them is in memory than was asked for."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np


class ShardedArray:
    """An array (N,) in parts, which are opened when something of them is read."""

    def __init__(
        self,
        lengths: Sequence[int],
        open_part: Callable[[int], np.ndarray],
        dtype: np.dtype[Any],
        *,
        offsets: Sequence[int] | None = None,
    ) -> None:
        """Args:
        lengths: of each part.
        open_part: the part of a number.
        offsets: what is added to the values of each part, such as where it begins in a text.
        """
        self.dtype = dtype
        self._ends, self._open, self._offsets = np.cumsum([0, *lengths]), open_part, offsets

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> Any:
        """A number, or a copy (n,) of a slice without steps."""
        if isinstance(index, slice):
            start, end, step = index.indices(len(self))
            if step != 1:
                raise IndexError("a sharded array has slices without steps alone")
            return self._read(start, end)
        position = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= position < len(self):
            raise IndexError(f"{index} is outside of an array of {len(self)}")
        return self._read(position, position + 1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of it, in memory."""
        whole = self._read(0, len(self))
        return whole if dtype is None else whole.astype(dtype)

    def _read(self, start: int, end: int) -> np.ndarray:
        parts = list(self._parts(start, end))
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def _parts(self, start: int, end: int) -> Iterator[np.ndarray]:
        number = int(np.searchsorted(self._ends, start, side="right")) - 1
        while start < end:
            first, last = int(self._ends[number]), int(self._ends[number + 1])
            if last > start:
                part = self._open(number)[start - first : min(end, last) - first]
                yield part if self._offsets is None else part + self._offsets[number]
                start = min(end, last)
            number += 1


TokenArray = np.ndarray | ShardedArray

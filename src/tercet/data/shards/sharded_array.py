"""Concatenation of arrays that are opened on demand, so that only the requested parts are in memory."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np


class ShardedArray:
    """Array (N,) of several parts, each opened when one of its elements is read."""

    def __init__(
        self,
        lengths: Sequence[int],
        open_part: Callable[[int], np.ndarray],
        dtype: np.dtype[Any],
        *,
        offsets: Sequence[int] | None = None,
    ) -> None:
        """Initialize from the lengths of the parts.

        Args:
            lengths: Length of each part.
            open_part: Function that receives the number of a part and returns the part.
            dtype: Type of the elements.
            offsets: Value to add to all elements of each part, such as the position of a shard in all ids.
        """
        self.dtype = dtype
        self._ends, self._open, self._offsets = np.cumsum([0, *lengths]), open_part, offsets

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> Any:
        """Return an element, or a copy (n,) of a slice with step 1."""
        if isinstance(index, slice):
            start, end, step = index.indices(len(self))
            if step != 1:
                raise IndexError("a sharded array supports only slices with step 1")
            return self._read(start, end)
        position = int(index) + (len(self) if index < 0 else 0)
        if not 0 <= position < len(self):
            raise IndexError(f"{index} is out of range for an array of {len(self)}")
        return self._read(position, position + 1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole array, in memory."""
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

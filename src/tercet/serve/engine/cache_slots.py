"""The KV cache of a batch whose rows come and go while their neighbours are decoded."""

import torch

from tercet.nn.cache import StackCache


class CacheSlots:
    """So many slots for rows, in tables as wide as was needed.

    The rows stand at the front without a gap, so that a step costs what they cost and nothing for empty slots: who
    leaves makes room for the last one. Only that one row is copied. Nothing of a row is left to the next one in its
    slot: a masked NaN would still be one.

    Args:
        tables: an empty cache with a row for each slot, of any capacity; it grows when it has to.
        max_columns: the most tokens a row may hold.
    """

    MIN_COLUMNS = 64  # by which the tables grow at least; later they double

    def __init__(self, tables: StackCache, *, max_columns: int) -> None:
        self.tables, self.max_columns = tables, max_columns
        self.lengths: list[int] = []  # tokens of each row that is here, in the order of their slots

    def join(self, cache: StackCache, row: int, length: int) -> None:
        """A row of another cache, of which the first `length` tokens are real, takes the next free slot."""
        if len(self.lengths) == len(self.tables.lengths):
            raise ValueError(f"all {len(self.lengths)} places are taken; one has to leave first")
        self._reserve(length)
        self.tables.write_rows(len(self.lengths), cache, row, columns=length)
        self.lengths.append(length)

    def leave(self, slot: int) -> None:
        """The row in `slot` goes, and the last one takes its slot."""
        last = len(self.lengths) - 1
        length = self.lengths.pop()
        if slot != last:
            self.tables.write_rows(slot, self.tables, last, columns=length)
            self.lengths[slot] = length

    def rows(self) -> StackCache:
        """All rows that are here, with a free column each, for a step; `advance` tells that it was taken."""
        capacity = max(self.lengths) + 1
        self._reserve(capacity)
        return self.tables.view(torch.tensor(self.lengths, device=self.tables.lengths.device), capacity)

    def advance(self) -> None:
        """Each row holds one token more."""
        self.lengths = [length + 1 for length in self.lengths]

    def _reserve(self, columns: int) -> None:
        if columns > self.max_columns:
            raise ValueError(f"a row of {columns} tokens does not fit: the most is {self.max_columns}")
        if columns > self.tables.capacity:
            self.tables.grow(min(self.max_columns, max(columns, self.MIN_COLUMNS, 2 * self.tables.capacity)))

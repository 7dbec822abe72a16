"""The KV cache of a batch whose rows join and leave during decoding."""

import torch

from tercet.nn.cache import StackCache


class CacheSlots:
    """A KV cache with one slot per row, whose tables grow as the rows become longer.

    The rows occupy the first slots without gaps, so the cost of a step does not depend on empty slots. If a row leaves,
    the last row takes its slot; only that row is copied. All values of the previous row are overwritten, because a NaN
    among them would make the result NaN even if it is masked.

    Args:
        tables: Empty cache with one row per slot, of any capacity; it grows as needed.
        max_columns: Maximum number of tokens per row.
    """

    MIN_COLUMNS = 64  # minimum capacity once a row has joined; if the tables grow again, they at least double

    def __init__(self, tables: StackCache, *, max_columns: int) -> None:
        self.tables, self.max_columns = tables, max_columns
        self.lengths: list[int] = []  # tokens of each row, in the order of the slots

    def join(self, cache: StackCache, row: int, length: int) -> None:
        """Copy the first `length` tokens of a row of another cache into the next free slot.

        Raises:
            ValueError: If all slots are in use, or `length` exceeds `max_columns`.
        """
        if len(self.lengths) == len(self.tables.lengths):
            raise ValueError(f"all {len(self.lengths)} slots are in use; remove a row first")
        self._reserve(length)
        self.tables.write_rows(len(self.lengths), cache, row, columns=length)
        self.lengths.append(length)

    def leave(self, slot: int) -> None:
        """Remove the row in `slot`; the last row takes the slot."""
        last = len(self.lengths) - 1
        length = self.lengths.pop()
        if slot != last:
            self.tables.write_rows(slot, self.tables, last, columns=length)
            self.lengths[slot] = length

    def rows(self) -> StackCache:
        """Return a view of all rows with a free column for the next token of each; call `advance` after the step.

        Raises:
            ValueError: If a row has `max_columns` tokens, so that no column is free.
        """
        capacity = max(self.lengths) + 1
        self._reserve(capacity)
        return self.tables.view(torch.tensor(self.lengths, device=self.tables.lengths.device), capacity)

    def advance(self) -> None:
        """Add one token to the length of each row."""
        self.lengths = [length + 1 for length in self.lengths]

    def _reserve(self, columns: int) -> None:
        if columns > self.max_columns:
            raise ValueError(f"a row of {columns} tokens exceeds the maximum of {self.max_columns}")
        if columns > self.tables.capacity:
            self.tables.grow(min(self.max_columns, max(columns, self.MIN_COLUMNS, 2 * self.tables.capacity)))

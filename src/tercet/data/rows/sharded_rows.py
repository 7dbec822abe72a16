"""Rows of prepared folders, numbered shard by shard and folder by folder.

No row spans two shards, so that reading a row requires only its shard.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tercet.config import UserError
from tercet.data.rows.layouts import Mixture, ShardGroups, part_seed
from tercet.data.rows.order import Layout, ShuffledLayout
from tercet.data.rows.token_rows import PackedRows, PaddedRows, TokenRows
from tercet.data.shards.token_folder import Part, TokenFolder, release_pages


class Rows(Protocol):
    """Protocol of numbered rows of tokens."""

    def __len__(self) -> int: ...

    def batch(self, numbers: np.ndarray, shift: int | np.ndarray = 0) -> TokenRows: ...


class ShardedRows:
    """Rows of one folder.

    Attributes:
        packed: True if no row has padding.
        layout: Order of the rows, or None for a permutation of all rows in each epoch.
    """

    def __init__(
        self,
        folder: TokenFolder,
        make: Callable[[np.ndarray, np.ndarray], PackedRows | PaddedRows],
        *,
        length: int,
        has_documents: bool,
        packed: bool,
    ) -> None:
        """Initialize the rows of all shards that are long enough.

        Args:
            folder: Prepared folder.
            make: Function that makes the rows of a shard from its ids and the starts of its documents.
            length: Number of inputs per row. A shard of at most `length` tokens is skipped.
            has_documents: If True, `make` uses the starts of documents; otherwise it receives none.
            packed: If True, no row has padding, so that the number of rows follows from the number of tokens.

        Raises:
            UserError: If no shard is long enough for a row.
        """
        self.packed = packed
        self._folder, self._make, self._has_documents = folder, make, has_documents
        self._open = OrderedDict[int, tuple[PackedRows | PaddedRows, np.ndarray]]()
        self._parts, sizes = list[Part](), list[int]()
        for part in folder.contents.shards:
            if part.tokens > length:
                n_rows = PackedRows.count(part.tokens, length) if packed else self._count(part)
                if n_rows:
                    self._parts.append(part)
                    sizes.append(n_rows)
        if not sizes:
            longest = max((part.tokens for part in folder.contents.shards), default=0)
            raise UserError(
                f"the longest shard of {folder.name} has {longest} tokens, too few for a context of {length}; "
                "prepare more text or larger shards, or reduce model.max_len"
            )
        self._firsts = np.append(0, np.cumsum(sizes))
        self._numbers = [folder.contents.shards.index(part) for part in self._parts]
        self.layout = None if folder.group is None else ShardGroups(tuple(sizes), folder.group)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def batch(self, numbers: np.ndarray, shift: int | np.ndarray = 0) -> TokenRows:
        shifts = np.broadcast_to(shift, numbers.shape)
        row_shards = np.searchsorted(self._firsts, numbers, side="right") - 1
        batches = list[tuple[np.ndarray, TokenRows]]()
        for shard in np.unique(row_shards).tolist():
            at = np.flatnonzero(row_shards == shard)
            batches.append((at, self._rows(shard).batch(numbers[at] - self._firsts[shard], shifts[at])))
            release_pages(self._open[shard][1])  # the system may have mapped 2 MB around each row
        return merge_rows(batches, len(numbers))

    def count_real(self, width: int) -> np.ndarray:
        """Return, for each row of all shards, how many of its first `width` tokens are real, (rows,) int32.

        The rows must be `PaddedRows`.
        """
        rows = (self._rows_without_ids(part, self._folder.documents(part)) for part in self._parts)
        return np.concatenate([part_rows.count_real(width) for part_rows in rows if isinstance(part_rows, PaddedRows)])

    def fetch_ahead(self, position: int, seed: int) -> None:
        """Open, in a thread, the shards of the group at a position and of the next group, and close the others.

        Without groups, all shards are opened.

        Args:
            position: Position of the next row, counted over all epochs.
            seed: Seed of the order.
        """
        if self.layout is None:
            self._folder.open_ahead(self._numbers)
            return
        shards = [*self.layout.current(position, seed).tolist(), *self.layout.following(position, seed).tolist()]
        for shard in set(self._open) - set(shards):
            del self._open[shard]  # a mapping keeps the disk space of a removed file
        self._folder.open_ahead([self._numbers[shard] for shard in shards])

    def _rows(self, shard: int) -> PackedRows | PaddedRows:
        if shard not in self._open:
            part = self._parts[shard]
            ids = self._folder.ids(part)
            documents = self._folder.documents(part) if self._has_documents else np.empty(0, np.int64)
            self._open[shard] = self._make(ids, documents), ids
        self._open.move_to_end(shard)
        while len(self._open) > self._folder.max_open:
            self._open.popitem(last=False)
        return self._open[shard][0]

    def _count(self, part: Part) -> int:
        """Return the number of rows of a shard whose rows are padded; 0 if no document has two tokens."""
        documents = self._folder.documents(part)
        if not (np.diff(documents, append=part.tokens) > 1).any():
            return 0
        return len(self._rows_without_ids(part, documents))

    def _rows_without_ids(self, part: Part, documents: np.ndarray) -> PackedRows | PaddedRows:
        """Return the rows of a shard with placeholder ids, to count them without opening the shard."""
        return self._make(np.broadcast_to(np.zeros((), self._folder.contents.dtype), part.tokens), documents)


class MixedRows:
    """Rows of several folders, numbered folder by folder and read in fixed shares.

    Attributes:
        layout: Order of the rows.
    """

    def __init__(self, rows: Sequence[ShardedRows], weights: Sequence[float]) -> None:
        self._rows, self._firsts = rows, np.cumsum([0, *map(len, rows)])
        layouts: list[Layout] = [part_rows.layout or ShuffledLayout(len(part_rows)) for part_rows in rows]
        self.layout = Mixture(tuple(layouts), tuple(weights))

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def batch(self, numbers: np.ndarray, shift: int | np.ndarray = 0) -> TokenRows:
        shifts = np.broadcast_to(shift, numbers.shape)
        batches = list[tuple[np.ndarray, TokenRows]]()
        for part, rows in enumerate(self._rows):
            at = np.flatnonzero((numbers >= self._firsts[part]) & (numbers < self._firsts[part + 1]))
            if len(at):
                batches.append((at, rows.batch(numbers[at] - self._firsts[part], shifts[at])))
        return merge_rows(batches, len(numbers))

    def fetch_ahead(self, position: int, seed: int) -> None:
        for part, rows in enumerate(self._rows):
            rows.fetch_ahead(self.layout.part_position(part, position), part_seed(seed, part))


def merge_rows(batches: Sequence[tuple[np.ndarray, TokenRows]], n_rows: int) -> TokenRows:
    """Merge batches into one of `n_rows` rows. Each batch comes with the positions (b,) of its rows in the result."""

    def merge(parts: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> np.ndarray | None:
        result: np.ndarray | None = None
        for at, rows in parts:
            if rows is not None:
                result = np.empty((n_rows, *rows.shape[1:]), rows.dtype) if result is None else result
                result[at] = rows
        return result

    tokens = merge([(at, batch.tokens) for at, batch in batches])
    assert tokens is not None
    return TokenRows(
        tokens=tokens,
        mask=merge([(at, batch.mask) for at, batch in batches]),
        documents=merge([(at, batch.documents) for at, batch in batches]),
    )

"""KV cache: the keys and values that attention keeps between decode steps, stored outside the model.

The keys and values of self-attention grow by one column per token. Those of cross-attention are projected once from
the encoder's output and then only read. Both caches have the same interface, `k, v = cache.keys_values(project)`,
where `project` computes new keys and values.

A column is a position: the next token of row b is written to column `lengths[b]`. Rows of unequal length therefore
need no padding, and columns after the last token of a row are never attended to. All sizes are static, so that a decode
step compiles to one graph.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Pair = tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]]


@runtime_checkable
class KVCache(Protocol):
    """KV cache of one attention module.

    `keys_values` returns all keys and values. It calls `project` for those that are not yet stored. `reorder` keeps the
    given rows, in this order.
    """

    def keys_values(self, project: Callable[[], Pair]) -> Pair: ...

    def reorder(self, rows: Int[Tensor, " R"]) -> None: ...


class GrowingKVCache:
    """KV cache of self-attention: writes the columns of the new tokens and returns all columns.

    Args:
        owner: Cache of the stack, which has the lengths of the rows.
        keys, values: (B, G, S, K) Tables to write to. S is the capacity plus one spare column.
    """

    def __init__(self, owner: "StackCache", keys: Tensor, values: Tensor) -> None:
        self.owner, self.keys, self.values = owner, keys, values

    def keys_values(self, project: Callable[[], Pair]) -> Pair:
        k, v = project()  # (B, G, T, K)
        rows, columns = self.owner.index_columns(k.shape[2])  # (B, 1), (B, T)
        self.keys[rows, :, columns] = k.transpose(1, 2).to(self.keys.dtype)
        self.values[rows, :, columns] = v.transpose(1, 2).to(self.values.dtype)
        return self.keys, self.values

    def reorder(self, rows: Int[Tensor, " R"]) -> None:
        # On a CPU, `index_select` is four times as fast as `self.keys[rows]`.
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def grow(self, columns: int) -> None:
        """Extend the tables to `columns` columns, which include the spare one."""
        old = self.keys.shape[2] - 1  # without the spare column
        self.keys, self.values = (F.pad(x[:, :, :old], (0, 0, 0, columns - old)) for x in (self.keys, self.values))


class StaticKVCache:
    """KV cache of cross-attention: projected at the first call and reused by all later calls."""

    def __init__(self) -> None:
        self.pair: Pair | None = None

    def keys_values(self, project: Callable[[], Pair]) -> Pair:
        if self.pair is None:
            self.pair = project()
        return self.pair

    def reorder(self, rows: Int[Tensor, " R"]) -> None:
        if self.pair is not None:
            self.pair = self.pair[0][rows], self.pair[1][rows]


@dataclass
class LayerCache:
    """KV caches of one layer, for self-attention and for cross-attention. The latter is empty without sources."""

    self_kv: GrowingKVCache
    cross_kv: StaticKVCache


class StackCache:
    """KV caches of all layers of a stack.

    Args:
        n_layers, n_kv_heads, d_head: Sizes of the stack.
        batch: Number of rows.
        capacity: Maximum number of tokens per row. Tables have one more column, which takes padding.
        device, dtype: Device and type of the tables (default: those of PyTorch).

    Attributes:
        lengths: Number of tokens in each row.
        memory_token_mask: True at real tokens of the sources, with one row per source; None without sources.
        rows_per_source: Number of consecutive rows that share a source.
        layers: KV caches of each layer.
    """

    def __init__(
        self,
        *,
        n_layers: int,
        n_kv_heads: int,
        d_head: int,
        batch: int,
        capacity: int,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.capacity = capacity
        self.lengths: Int[Tensor, " B"] = torch.zeros(batch, dtype=torch.long, device=device)
        self.memory_token_mask: Bool[Tensor, "B M"] | None = None
        self.rows_per_source = 1
        self._indices: tuple[Int[Tensor, "B 1"], Int[Tensor, "B T"]] | None = None  # of the current forward pass

        buffer = partial(torch.zeros, batch, n_kv_heads, capacity + 1, d_head, device=device, dtype=dtype)
        self.layers = [LayerCache(GrowingKVCache(self, buffer(), buffer()), StaticKVCache()) for _ in range(n_layers)]

    def positions(self, n_tokens: int) -> Int[Tensor, "B T"]:
        """Return the columns of the next `n_tokens` tokens of each row.

        Columns beyond the capacity, which only padding can have, are replaced by the one spare column.
        """
        ahead = torch.arange(n_tokens, device=self.lengths.device)
        return (self.lengths[:, None] + ahead).clamp(max=self.capacity)

    def index_columns(self, n_tokens: int) -> tuple[Int[Tensor, "B 1"], Int[Tensor, "B T"]]:
        """Return row and column indices of the next `n_tokens` tokens, computed once per forward pass."""
        if self._indices is None or self._indices[1].shape[1] != n_tokens:
            columns = self.positions(n_tokens)
            self._indices = torch.arange(len(columns), device=columns.device)[:, None], columns
        return self._indices

    def key_positions(self) -> Int[Tensor, "#B S"]:
        """Return the position of each key. A column is a position."""
        return torch.arange(self.capacity + 1, device=self.lengths.device)[None]

    def mask(self, positions: Int[Tensor, "B T"]) -> Bool[Tensor, "B 1 T S"]:
        """Return a mask in which a query at position p attends to columns 0..p."""
        return (self.key_positions() <= positions[..., None])[:, None]

    def advance(self, count: Int[Tensor, " B"] | int) -> None:
        """Add `count` tokens to the length of each row.

        A negative count removes tokens, since columns beyond the length are never attended to. Lengths are changed in
        place, because a CUDA graph reads and writes fixed addresses.
        """
        self.lengths += count
        self._indices = None

    def read(self, hidden: Float[Tensor, "B T D"], lengths: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
        """Add new tokens to the length of each row, and return the hidden state of the last one.

        Args:
            hidden: Hidden states of the new tokens, padded on the right.
            lengths: Number of real tokens in each row of `hidden`, at least one.
        """
        self.advance(lengths)
        if hidden.shape[1] == 1:
            return hidden[:, 0]
        return hidden[torch.arange(len(lengths), device=lengths.device), lengths - 1]

    def reorder(self, rows: Int[Tensor, " R"]) -> None:
        """Keep these rows, in this order.

        A row may be repeated (beam search) or missing (finished).

        Rows that share a source must stay together: they are permuted among themselves, or removed together. This is
        not checked, because the check would wait for the device. If several rows share a source and the number of rows
        does not change, the sources are not reordered.

        Args:
            rows: Indices of the rows to keep.

        Raises:
            ValueError: If there are sources and the number of rows is not a multiple of `rows_per_source`.
        """
        if self.memory_token_mask is not None and len(rows) % self.rows_per_source:
            raise ValueError(
                f"the number of rows must be a multiple of {self.rows_per_source}, the rows per source: {len(rows)}"
            )
        if self.rows_per_source == 1 or len(rows) != len(self.lengths):
            sources = rows[:: self.rows_per_source] // self.rows_per_source
            self.memory_token_mask = None if self.memory_token_mask is None else self.memory_token_mask[sources]
            for layer in self.layers:
                layer.cross_kv.reorder(sources)
        self.lengths, self._indices = self.lengths[rows], None
        for layer in self.layers:
            layer.self_kv.reorder(rows)

    def expand_beams(self, n: int) -> None:
        """Repeat each row `n` times. The copies are consecutive and share their source, which is stored once."""
        self.lengths = self.lengths.repeat_interleave(n)
        self._indices = None
        rows = torch.arange(len(self.lengths), device=self.lengths.device) // n
        for layer in self.layers:
            layer.self_kv.reorder(rows)
        self.rows_per_source *= n

    def grow(self, capacity: int) -> None:
        """Extend the rows to `capacity` tokens, and keep their contents.

        Raises:
            ValueError: If the new capacity is less than the current one.
        """
        if capacity < self.capacity:
            raise ValueError(
                f"capacity={capacity} must be at least the current capacity of {self.capacity}; tokens would be lost"
            )
        for layer in self.layers:
            layer.self_kv.grow(capacity + 1)
        self.capacity, self._indices = capacity, None

    def allocate_sources(self, columns: int) -> None:
        """Allocate tables of zeros for the keys and values of the sources, which `write_rows` fills.

        There is one source for each `rows_per_source` rows.

        Args:
            columns: Maximum number of tokens of a source.
        """
        sources = len(self.lengths) // self.rows_per_source
        for layer in self.layers:
            table = layer.self_kv.keys
            shape = sources, table.shape[1], columns, table.shape[3]
            layer.cross_kv.pair = table.new_zeros(shape), table.new_zeros(shape)
        self.memory_token_mask = torch.zeros(sources, columns, dtype=torch.bool, device=self.lengths.device)

    def reorder_in_place(self, rows: Int[Tensor, " B"]) -> None:
        """Keep all rows, in this order, at the same memory addresses, as a CUDA graph requires.

        Rows may only move within the group that shares a source.
        """
        self.lengths.copy_(self.lengths[rows])
        for layer in self.layers:
            for table in (layer.self_kv.keys, layer.self_kv.values):
                table.copy_(table.index_select(0, rows))

    def write_rows(self, slot: int, other_cache: "StackCache", row: int, *, rows: int = 1, columns: int) -> None:
        """Copy rows of another cache in place and fill the remaining columns with zeros.

        Zeros are required because a masked NaN would still produce NaN. `lengths` is not changed.

        Args:
            slot: First row to write.
            other_cache: Cache to read. Its sources are copied too if this cache has tables for them. Both caches must
                have the same `rows_per_source`.
            row: First row to read.
            rows: Number of rows.
            columns: Number of tokens to copy from each row.
        """
        target_rows, source_rows = slice(slot, slot + rows), slice(row, row + rows)
        target_sources, read_sources = (
            slice(rows.start // self.rows_per_source, rows.stop // self.rows_per_source)
            for rows in (target_rows, source_rows)
        )
        for layer, source in zip(self.layers, other_cache.layers, strict=True):
            pairs = (layer.self_kv.keys, source.self_kv.keys), (layer.self_kv.values, source.self_kv.values)
            for table, vectors in pairs:
                table[target_rows, :, :columns] = vectors[source_rows, :, :columns]
                table[target_rows, :, columns:] = 0.0
            if layer.cross_kv.pair is not None and source.cross_kv.pair is not None:
                for table, vectors in zip(layer.cross_kv.pair, source.cross_kv.pair, strict=True):
                    table[target_sources, :, : vectors.shape[2]] = vectors[read_sources]
                    table[target_sources, :, vectors.shape[2] :] = 0.0
        if self.memory_token_mask is not None and other_cache.memory_token_mask is not None:
            width = other_cache.memory_token_mask.shape[1]
            self.memory_token_mask[target_sources, :width] = other_cache.memory_token_mask[read_sources]
            self.memory_token_mask[target_sources, width:] = False

    def view(self, lengths: Int[Tensor, " R"], capacity: int) -> "StackCache":
        """Return the first rows and columns as a cache that shares the memory of this one.

        Args:
            lengths: Number of tokens in each row of the view.
            capacity: Number of columns of the view, without the spare one.
        """
        n_rows, n_sources = len(lengths), len(lengths) // self.rows_per_source
        part = copy(self)
        part.lengths, part.capacity, part._indices = lengths, capacity, None
        part.memory_token_mask = None if self.memory_token_mask is None else self.memory_token_mask[:n_sources]
        part.layers = []
        for layer in self.layers:
            tables = (table[:n_rows, :, : capacity + 1] for table in (layer.self_kv.keys, layer.self_kv.values))
            sources = StaticKVCache()
            if layer.cross_kv.pair is not None:
                sources.pair = layer.cross_kv.pair[0][:n_sources], layer.cross_kv.pair[1][:n_sources]
            part.layers.append(LayerCache(GrowingKVCache(part, *tables), sources))
        return part

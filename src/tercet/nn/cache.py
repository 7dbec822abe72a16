"""Decoding state: what attention has already worked out, kept outside the model.

Self-attention's keys and values grow by a column a token; cross-attention's are projected from the encoder's output
once and then only read. Both answer one question: `k, v = cache.keys_values(project)`; `project` works out new ones.

A column is a position: row b's next token goes to column `lengths[b]`, so rows of unequal length need no padding, and
what stands to the right of a row's length is never seen. All sizes are static, so that a step compiles as one graph.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Pair = tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]]


@runtime_checkable
class KVCache(Protocol):
    def keys_values(self, project: Callable[[], Pair]) -> Pair: ...

    def reorder(self, rows: Int[Tensor, " R"]) -> None: ...


class GrowingKVCache:
    """Self-attention: writes the new columns, answers with all of them."""

    def __init__(self, owner: "StackCache", keys: Tensor, values: Tensor) -> None:
        self.owner, self.keys, self.values = owner, keys, values

    def keys_values(self, project: Callable[[], Pair]) -> Pair:
        k, v = project()  # (B, G, T, K)
        rows, columns = self.owner.index_columns(k.shape[2])  # (B, 1), (B, T)
        self.keys[rows, :, columns] = k.transpose(1, 2).to(self.keys.dtype)
        self.values[rows, :, columns] = v.transpose(1, 2).to(self.values.dtype)
        return self.keys, self.values

    def reorder(self, rows: Int[Tensor, " R"]) -> None:
        # Not self.keys[rows], which is four times as slow on a CPU.
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)

    def grow(self, columns: int) -> None:
        old = self.keys.shape[2] - 1  # without the spare one
        self.keys, self.values = (F.pad(x[:, :, :old], (0, 0, 0, columns - old)) for x in (self.keys, self.values))


class StaticKVCache:
    """Cross-attention: projected at the first call, read at every other."""

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
    self_kv: GrowingKVCache
    cross_kv: StaticKVCache


class StackCache:
    """The decoding state of a whole stack.

    Args:
        n_layers, n_kv_heads, d_head: the stack's.
        batch: rows.
        capacity: columns: the most tokens a row can hold.
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
        self.memory_token_mask: Bool[Tensor, "B M"] | None = None  # the source's real tokens, where there is a source
        self.rows_per_source = 1  # rows, next to each other, that look at one source
        self._indices: tuple[Int[Tensor, "B 1"], Int[Tensor, "B T"]] | None = None  # of the current pass

        def buffer() -> Tensor:
            return torch.zeros(batch, n_kv_heads, capacity + 1, d_head, device=device, dtype=dtype)

        self.layers = [LayerCache(GrowingKVCache(self, buffer(), buffer()), StaticKVCache()) for _ in range(n_layers)]

    def positions(self, n_tokens: int) -> Int[Tensor, "B T"]:
        """Where the next `n_tokens` tokens of each row go; padding beyond the capacity goes to one spare column."""
        ahead = torch.arange(n_tokens, device=self.lengths.device)
        return (self.lengths[:, None] + ahead).clamp(max=self.capacity)

    def index_columns(self, n_tokens: int) -> tuple[Int[Tensor, "B 1"], Int[Tensor, "B T"]]:
        """The rows and columns of the next `n_tokens` tokens, worked out once for all layers of a pass."""
        if self._indices is None or self._indices[1].shape[1] != n_tokens:
            columns = self.positions(n_tokens)
            self._indices = torch.arange(len(columns), device=columns.device)[:, None], columns
        return self._indices

    def mask(self, positions: Int[Tensor, "B T"]) -> Bool[Tensor, "B 1 T S"]:
        """A query at position p sees the columns 0..p."""
        columns = torch.arange(self.capacity + 1, device=positions.device)
        return (columns <= positions[..., None])[:, None]

    def advance(self, count: Int[Tensor, " B"] | int) -> None:
        """Count so many more tokens of each row; below 0, so many fewer: what is right of a length is never seen.

        In place: a CUDA graph reads and writes fixed addresses.
        """
        self.lengths += count
        self._indices = None

    def read(self, hidden: Float[Tensor, "B T D"], lengths: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
        """Count `lengths` tokens of each row as read; the hidden state of the last of them."""
        self.advance(lengths)
        if hidden.shape[1] == 1:
            return hidden[:, 0]
        return hidden[torch.arange(len(lengths), device=lengths.device), lengths - 1]

    def reorder(self, rows: Int[Tensor, " R"]) -> None:
        """Keep these rows, in this order; a row may be named twice (beams) or not at all (finished).

        Rows that share a source stay together: they change places among themselves, or all of them go. That is not
        checked, which would wait for the device: with as many rows as before, the sources are not touched.
        """
        if self.memory_token_mask is not None and len(rows) % self.rows_per_source:
            raise ValueError(
                f"{self.rows_per_source} rows share a source, and stay or go together: {len(rows)} rows are named"
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
        """Each row becomes `n` rows next to each other; they share its source, kept once."""
        self.lengths = self.lengths.repeat_interleave(n)
        self._indices = None
        rows = torch.arange(len(self.lengths), device=self.lengths.device) // n
        for layer in self.layers:
            layer.self_kv.reorder(rows)
        self.rows_per_source *= n

    def grow(self, capacity: int) -> None:
        """Room for more columns; what is there stays."""
        if capacity < self.capacity:
            raise ValueError(
                f"capacity={capacity} is less than the {self.capacity} that there are; tokens would be lost"
            )
        for layer in self.layers:
            layer.self_kv.grow(capacity + 1)
        self.capacity, self._indices = capacity, None

    def allocate_sources(self, columns: int) -> None:
        """Make tables for the keys and values of sources, `columns` tokens each, which `write_rows` fills.

        One for each `rows_per_source` rows.
        """
        sources = len(self.lengths) // self.rows_per_source
        for layer in self.layers:
            table = layer.self_kv.keys
            shape = sources, table.shape[1], columns, table.shape[3]
            layer.cross_kv.pair = table.new_zeros(shape), table.new_zeros(shape)
        self.memory_token_mask = torch.zeros(sources, columns, dtype=torch.bool, device=self.lengths.device)

    def reorder_in_place(self, rows: Int[Tensor, " B"]) -> None:
        """Keep these rows, in this order, as many as there are and within the groups that share a source.

        The tables stay where they are, which a CUDA graph needs.
        """
        self.lengths.copy_(self.lengths[rows])
        for layer in self.layers:
            for table in (layer.self_kv.keys, layer.self_kv.values):
                table.copy_(table.index_select(0, rows))

    def write_rows(self, slot: int, other_cache: "StackCache", row: int, *, rows: int = 1, columns: int) -> None:
        """Copy rows of another cache, in place; zeros follow them, since a masked NaN would still be one.

        Args:
            slot: The first row to write.
            other_cache: Cache to read. Its sources are copied too if this cache has tables for them. The same number of
                rows must share a source in both.
            row: The first row to read.
            rows: Number of rows.
            columns: Number of tokens of each row to copy.
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
        """The first rows and columns, in the same memory, as a cache of their own.

        Args:
            lengths: the tokens of each of its rows.
            capacity: its columns, beside the spare one.
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

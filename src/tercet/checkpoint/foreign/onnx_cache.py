"""KV cache of exported graphs: the past is an input, and the past followed by the new tokens is an output.

The tables have no free columns, so new keys and values are appended. Otherwise the modules compute a step as they do in
`DecoderOnly.step`. The order of the tables in inputs and outputs is that of `table_names`.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tercet.nn.cache import GrowingKVCache, LayerCache, Pair, StackCache, StaticKVCache


class PastKVCache(GrowingKVCache):
    """KV cache of self-attention to which the keys and values of the new tokens are appended."""

    def keys_values(self, project: Callable[[], Pair]) -> Pair:
        self.keys, self.values = _append((self.keys, self.values), project())
        return self.keys, self.values


class PastMemoryKVCache(StaticKVCache):
    """KV cache of cross-attention to which the keys and values of the rest of the memory are appended.

    In the first call the past is empty and the rest is the whole memory. In later calls it is the reverse. One graph
    therefore computes both.
    """

    def __init__(self, past: Pair) -> None:
        super().__init__()
        self.past = past

    def keys_values(self, project: Callable[[], Pair]) -> Pair:
        self.pair = _append(self.past, project())
        return self.pair


class PastCache(StackCache):
    """KV caches of all layers of a stack, for one forward pass over new tokens.

    Args:
        past: Tables of the previous tokens: 2 per layer, or 4 with cross-attention.
        positions: Positions of the new tokens.
        key_positions: Positions of the previous and the new tokens.
        mask: True if a new token may attend to a token.
        capacity: Maximum number of positions.
        cross: If True, there are tables of cross-attention.
    """

    def __init__(
        self,
        past: Sequence[Tensor],
        *,
        positions: Int[Tensor, "B T"],
        key_positions: Int[Tensor, "#B S"],
        mask: Bool[Tensor, "#B 1 T S"],
        capacity: int,
        cross: bool = False,
    ) -> None:
        super().__init__(n_layers=0, n_kv_heads=0, d_head=0, batch=0, capacity=capacity)
        self._positions, self._key_positions, self._mask = positions, key_positions, mask
        n_tables = 4 if cross else 2
        for layer in range(0, len(past), n_tables):
            keys, values, *memory = past[layer : layer + n_tables]
            cross_kv = PastMemoryKVCache((memory[0], memory[1])) if cross else StaticKVCache()
            self.layers.append(LayerCache(PastKVCache(self, keys, values), cross_kv))

    def positions(self, n_tokens: int) -> Int[Tensor, "B T"]:
        return self._positions

    def key_positions(self) -> Int[Tensor, "#B S"]:
        return self._key_positions

    def mask(self, positions: Int[Tensor, "B T"]) -> Bool[Tensor, "#B 1 T S"]:
        return self._mask

    def tables(self) -> tuple[Tensor, ...]:
        """Return the tables after the forward pass, in the order of `past`."""
        return tuple(
            table
            for layer in self.layers
            for table in (layer.self_kv.keys, layer.self_kv.values, *(layer.cross_kv.pair or ()))
        )


def table_names(prefix: str, n_layers: int, *, cross: bool = False) -> list[str]:
    """Return the names of the tables of a cache: `prefix`, layer, and with cross-attention "decoder" or "encoder"."""
    parts = [f"{stack}.{kind}" for stack in ("decoder", "encoder") for kind in ("key", "value")] if cross else None
    return [f"{prefix}.{layer}.{part}" for layer in range(n_layers) for part in parts or ("key", "value")]


def _append(past: Pair, new: Pair) -> Pair:
    return torch.cat((past[0], new[0]), dim=2), torch.cat((past[1], new[1]), dim=2)

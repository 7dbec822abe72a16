"""One layer: self-attention, then (in a decoder that reads an encoder) cross-attention, then the feed-forward network.

It is at once the unit of reading, sharding, compiling, activation checkpointing and inspection.
"""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from tercet.nn.attention import Attention, Bias, Mask
from tercet.nn.cache import LayerCache
from tercet.nn.feedforward import FeedForward
from tercet.nn.positions import Rotation
from tercet.nn.residual import Placement, Residual


class Block(nn.Module):
    """Args:
    attention, feedforward, norm: make a new part at each call, so that no two share weights.
    cross: with cross-attention.
    dropout: on each branch, before it is added to the stream.
    """

    def __init__(
        self,
        *,
        attention: Callable[[], Attention],
        feedforward: Callable[[], FeedForward],
        norm: Callable[[], nn.Module],
        placement: Placement = "pre",
        dropout: float = 0.0,
        cross: bool = False,
    ) -> None:
        super().__init__()
        self.self_attention = attention()
        self.self_residual = Residual(norm, placement=placement, dropout=dropout)
        self.cross_attention = attention() if cross else None
        self.cross_residual = Residual(norm, placement=placement, dropout=dropout) if cross else None
        self.feedforward = feedforward()
        self.feedforward_residual = Residual(norm, placement=placement, dropout=dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        memory: Float[Tensor, "N M D"] | None = None,
        memory_mask: Bool[Tensor, "N 1 1 M"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        own, cross = (None, None) if cache is None else (cache.own, cache.cross)

        def look_back(h: Tensor) -> Tensor:
            return self.self_attention(h, mask=mask, bias=bias, causal=causal, rotation=rotation, cache=own)

        def look_across(h: Tensor) -> Tensor:
            assert self.cross_attention is not None
            if memory is None and (cross is None or cross.pair is None):
                raise ValueError("cross-attention has nothing to look at: give the memory, or a cache that has met it")
            return self.cross_attention(h, memory, mask=memory_mask, cache=cross)

        x = self.self_residual(x, look_back)
        if self.cross_residual is not None:
            x = self.cross_residual(x, look_across)
        return self.feedforward_residual(x, self.feedforward)

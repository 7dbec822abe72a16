"""One layer of a Transformer: self-attention, optional cross-attention, and the feed-forward network.

The sublayers run one after the other, or in parallel on the input of the layer. The block is also the unit of
sharding, compiling, activation checkpointing and inspection.
"""

from collections.abc import Callable
from functools import partial

from jaxtyping import Bool, Float
from torch import Tensor, nn

from tercet.nn.attention import Attention, Bias, Mask
from tercet.nn.cache import LayerCache
from tercet.nn.document_mask import BlockMask
from tercet.nn.positions import Rotation
from tercet.nn.residual import Residual
from tercet.nn.specs import Parallel, Placement


class Block(nn.Module):
    """One layer of a stack: its sublayers, each in a residual connection.

    Args:
        attention, feedforward, norm: Factories that return a new module at each call, so that no weights are shared.
        placement: Placement of the norms; see `residual.py`.
        dropout: Dropout rate of the output of self- and cross-attention, before it is added to the residual stream.
        feedforward_dropout: The same for the output of the feed-forward network (default: `dropout`).
        cross: If True, the layer has cross-attention.
        parallel: If True, the sublayers read the same input and their outputs are added together (GPT-J, PaLM). With
            `separate_norms`, each of them has its own norm before it, if the placement has one (GPT-NeoX).
        first_norm: If False, there is no norm before self-attention; see `StackSpec.first_norm`.
    """

    def __init__(
        self,
        *,
        attention: Callable[[], Attention],
        feedforward: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        placement: Placement = "pre",
        dropout: float = 0.0,
        feedforward_dropout: float | None = None,
        cross: bool = False,
        parallel: Parallel = False,
        first_norm: bool = True,
    ) -> None:
        super().__init__()
        residual = partial(Residual, norm, placement=placement)
        first, ends = parallel is not True, not parallel  # sequential sublayers do not share norms
        self.parallel = parallel
        self.self_attention = attention()
        self.self_residual = residual(dropout=dropout, first=first_norm, last=ends)
        self.cross_attention = attention() if cross else None
        self.cross_residual = residual(dropout=dropout, first=first, last=ends) if cross else None
        self.feedforward = feedforward()
        self.feedforward_residual = residual(
            dropout=dropout if feedforward_dropout is None else feedforward_dropout, first=first
        )

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Mask | BlockMask | None = None,
        bias: Bias | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        memory: Float[Tensor, "N M D"] | None = None,
        memory_mask: Bool[Tensor, "N 1 1 M"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the residual stream after this layer.

        Args:
            x: Residual stream before this layer.
            mask, bias, causal, rotation: Arguments of self-attention; see `Attention.forward`.
            memory: Output of an encoder, for cross-attention; may be None if the cache already contains its keys and
                values.
            memory_mask: True at the tokens of the memory that may be attended to (default: all).
            cache: KV caches of this layer.

        Raises:
            ValueError: If the layer has cross-attention, and neither the memory nor a cache that contains it is given.
        """
        self_kv, cross_kv = (None, None) if cache is None else (cache.self_kv, cache.cross_kv)
        read = partial(self._read, x, self.self_residual.before(x) if self.parallel is True else None)
        attend = partial(self.self_attention, mask=mask, bias=bias, causal=causal, rotation=rotation, cache=self_kv)
        x = self.self_residual(x, attend, read=read(self.self_residual))
        if self.cross_attention is not None and self.cross_residual is not None:
            if memory is None and (cross_kv is None or cross_kv.pair is None):
                raise ValueError("cross-attention requires `memory`, or a cache that already contains it")
            attend = partial(self.cross_attention, source=memory, mask=memory_mask, cache=cross_kv)
            x = self.cross_residual(x, attend, read=read(self.cross_residual))
        return self.feedforward_residual(x, self.feedforward, read=read(self.feedforward_residual))

    def _read(self, x: Tensor, shared: Tensor | None, residual: Residual) -> Tensor | None:
        """Return what a parallel sublayer of the block with input `x` reads, or None for a sequential one."""
        return residual.before(x) if self.parallel == "separate_norms" else shared

"""A stack of blocks, with the position scheme and the norms around them.

The stack builds these parts from a spec. It computes mask, rotation and biases once per forward pass for all blocks.
"""

from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tercet.models.fused import fused_layers
from tercet.models.fused_program import FusibleStack
from tercet.models.specs import StackSpec
from tercet.nn.attention import Attention, Mask
from tercet.nn.block import Block
from tercet.nn.cache import StackCache
from tercet.nn.document_mask import BlockMask, document_blocks, supports_block_mask
from tercet.nn.feedforward import FeedForward
from tercet.nn.linear import multiplied_dtype
from tercet.nn.norm import norm_factory


class Stack(FusibleStack):
    """A stack of blocks, from embedded tokens to hidden states.

    Args:
        spec: Sizes and variants.
        causal: If True, token t attends to tokens 0..t (decoders), else to all tokens (encoders).
        cross: If True, the blocks have cross-attention to an encoder's output.
        max_len: Maximum number of positions. It is the default size of a table of learned positions.
        embedding_norm: If True, apply a norm to the sum of token and position embedding before the first block.

    Attributes:
        window: Length of the sliding window; None if no layer has one, or if no text is longer.
        activation_checkpointing: If True, training keeps only the input of each block and recomputes its activations in
            the backward pass (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
    """

    activation_checkpointing = False

    def __init__(
        self, spec: StackSpec, *, causal: bool, cross: bool = False, max_len: int, embedding_norm: bool = False
    ) -> None:
        super().__init__()
        self.spec, self.causal = spec, causal
        norm = norm_factory(spec.norm, spec.d_model, eps=spec.norm_eps, bias=spec.norm_bias)
        feedforward = partial(
            FeedForward if spec.feedforward is None else spec.feedforward.build,
            d_model=spec.d_model,
            d_ff=spec.inner_width,
            activation=spec.activation,
            gated=spec.gated,
            bias=spec.biases.feedforward,
            dropout=spec.dropout.activation,
        )
        self.blocks = nn.ModuleList(
            Block(
                attention=partial(_build_attention, spec),
                feedforward=feedforward,
                norm=norm,
                placement=spec.placement,
                dropout=spec.dropout.branches.attention,
                feedforward_dropout=spec.dropout.branches.feedforward,
                cross=cross,
                parallel=spec.parallel,
                first_norm=spec.first_norm or layer > 0,
            )
            for layer in range(spec.n_layers)
        )
        self.position = spec.position.build(
            d_model=spec.d_model,
            d_head=spec.head_width,
            n_heads=spec.n_heads,
            n_layers=spec.n_layers,
            max_len=max_len,
            causal=causal,
        )
        self.is_local = spec.is_local
        self.window = _effective_window(spec, max_len, causal=causal)
        self.embedding_norm = norm() if embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(spec.dropout.embedding)
        self.final_norm = norm() if spec.has_final_norm else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        token_mask: Bool[Tensor, "B T"] | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        memory: Float[Tensor, "N M D"] | None = None,
        memory_token_mask: Bool[Tensor, "N M"] | None = None,
        cache: StackCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the hidden states after the last norm.

        Args:
            x: Embedded tokens without their positions.
            token_mask: True at real tokens. Padding may be at any position and does not change the result.
            documents: Document number of each position. Tokens attend only to their own document, and positions count
                from its start.
            memory: Output of an encoder, for cross-attention. Rows may share a row of the memory; see
                `Attention.forward`.
            memory_token_mask: True at real tokens of the memory.
            cache: KV cache of the previous tokens, to which these are added. `token_mask` and `documents` are then
                ignored.
        """
        if cache is None:
            positions = _positions(x, token_mask, documents)  # (B or 1, T)
        else:
            # A row without free columns may be stepped together with others. Its output is meaningless, but indices
            # must stay in range.
            positions = cache.positions(x.shape[1]).clamp(max=cache.capacity - 1)  # (B, T)
        position_embedding = self.position.embed(positions)
        x = self.embedding_norm(x if position_embedding is None else x + position_embedding.to(x.dtype))
        x = self.dropout(x)
        if cache is None:
            keys, mask = positions, self._mask(x, token_mask, documents)
        else:
            layers = fused_layers(self, x, cache)
            if layers is not None:
                return layers(x, self.position.rotation(positions), cache, memory_token_mask)
            keys, mask = cache.key_positions(), cache.mask(positions)
        local_mask = mask if self.window is None else self._local_mask(mask, positions, keys)
        rotations = self.position.rotations(positions, self.is_local[: len(self.blocks)])
        biases = self.position.biases(positions, keys, len(self.blocks))
        memory_mask = None if memory_token_mask is None else memory_token_mask[:, None, None]
        use_checkpointing = (
            self.activation_checkpointing and self.training and torch.is_grad_enabled() and cache is None
        )
        for i, (block, bias, rotation) in enumerate(zip(self.blocks, biases, rotations, strict=True)):
            layer_mask = local_mask if self.is_local[i] else mask
            run = partial(checkpoint, block, use_reentrant=False) if use_checkpointing else block
            x = run(
                x,
                mask=layer_mask,
                bias=bias,
                causal=self.causal and layer_mask is None,
                rotation=rotation,
                memory=memory,
                memory_mask=memory_mask,
                cache=None if cache is None else cache.layers[i],
            )
        return self.final_norm(x)

    def new_cache(self, batch: int, *, capacity: int) -> StackCache:
        """Return an empty KV cache on the device and in the dtype of the weights.

        Args:
            batch: Number of rows.
            capacity: Maximum number of tokens per row.
        """
        spec, weight = self.spec, next(self.parameters())
        return StackCache(
            n_layers=spec.n_layers,
            n_kv_heads=spec.kv_heads,
            d_head=spec.head_width,
            batch=batch,
            capacity=capacity,
            device=weight.device,
            dtype=weight.dtype,
        )

    def _mask(self, x: Tensor, token_mask: Tensor | None, documents: Tensor | None) -> Mask | BlockMask | None:
        """Return the mask; None if there is neither padding nor documents, so that attention uses its fastest path."""
        if token_mask is None and documents is None:
            return None
        if documents is not None and self._masks_blocks(x):
            if token_mask is not None:  # padding becomes a separate document
                documents = torch.where(token_mask, documents, documents.amin() - 1)
            return document_blocks(documents, causal=self.causal)
        length = x.shape[1]
        mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=x.device)
        mask = mask.tril() if self.causal else mask
        if token_mask is not None:
            mask = mask & token_mask[:, None, None, :]
        if documents is not None:
            mask = mask & (documents[:, None, :, None] == documents[:, None, None, :])
        return mask

    def _local_mask(
        self, mask: Mask | BlockMask | None, positions: Int[Tensor, "#B T"], keys: Int[Tensor, "#B S"]
    ) -> Mask:
        """Return the mask of layers with a window. Distances are those of positions, so padding does not count."""
        assert self.window is not None
        assert not isinstance(mask, BlockMask)
        distance = (positions[:, :, None] - keys[:, None, :])[:, None]  # (B, 1, T, S)
        is_near = distance < self.window if self.causal else distance.abs() <= self.window // 2
        if mask is not None:
            return mask & is_near
        return is_near & (distance >= 0) if self.causal else is_near

    def _masks_blocks(self, x: Tensor) -> bool:
        return (
            self.window is None
            and self.spec.attention is None
            and supports_block_mask(
                x.device.type,
                multiplied_dtype(x),
                d_head=self.spec.head_width,
                dropout=self.spec.dropout.attention if self.training else 0.0,
                changes_scores=self.position.has_bias or self.spec.attention_softcap is not None,
            )
        )


def _build_attention(spec: StackSpec) -> Attention:
    attention = (Attention if spec.attention is None else spec.attention.build)(
        d_model=spec.d_model,
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        d_head=spec.d_head,
        bias=spec.biases.qkv,
        out_bias=spec.biases.out,
        qk_norm=spec.qk_norm,
        dropout=spec.dropout.attention,
        softcap=spec.attention_softcap,
    )
    if not isinstance(attention, Attention):
        raise ValueError(f"{type(attention).__name__} is not a subclass of tercet.nn.Attention; inherit from it")
    return attention


def _effective_window(spec: StackSpec, max_len: int, *, causal: bool) -> int | None:
    """Return the length of the window; None if all tokens of a text of `max_len` tokens are always within it."""
    if spec.window is None or not any(spec.is_local):
        return None
    distance = spec.window.size - 1 if causal else spec.window.size // 2
    return spec.window.size if distance < max_len - 1 else None


def _positions(x: Tensor, token_mask: Tensor | None, documents: Tensor | None) -> Int[Tensor, "#B T"]:
    """Return the number of real tokens before each token, in its row or its document."""
    if token_mask is None:
        positions = torch.arange(x.shape[1], device=x.device)[None]
    else:
        positions = token_mask.long().cumsum(1) - token_mask.long()
    if documents is not None:
        starts = torch.ones_like(documents, dtype=torch.bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
        positions = positions - (positions * starts).cummax(1).values
    return positions

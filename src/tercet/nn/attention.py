"""Attention: every query looks at all keys it may see, and takes the mean of their values, weighted by likeness.

    attend(q, k, v) = softmax(q kᵀ / √K + bias) v

Vaswani et al., "Attention Is All You Need" (2017), equation 1. Fewer key/value heads than query heads: Shazeer (2019,
multi-query) and Ainslie et al. (2023, grouped-query). Norms on queries and keys: Henry et al. (2020).
Where we differ: a query that may see no key at all takes zeros, in both forms, where the formula gives 0/0.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from tercet.nn import kernels
from tercet.nn.cache import KVCache
from tercet.nn.document_mask import BlockMask, attend_blocks
from tercet.nn.linear import Linear
from tercet.nn.norm import RMSNorm
from tercet.nn.positions import Rotation, rotate

Mask = Bool[Tensor, "#B 1 #T S"]
Bias = Float[Tensor, "#B H T S"]
Note = Callable[[str, Tensor], Tensor]

FOLD_DEVICES: tuple[str, ...] = ("cuda",)  # devices on which heads that share keys become queries of one, beside a mask
QK_EPS = 1e-6  # of the norms on queries and keys, whatever the others have


def attend(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S K"],
    *,
    mask: Mask | BlockMask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T K"]:
    """The formula above, by the kernel that is fastest for it here.

    Args:
        mask: True where a query may see a key. Includes causality, if that is wanted beside it. Documents on a GPU may
            be masked by a table of squares (`document_blocks`) instead, without a bias and without dropout.
        bias: added to the scores (ALiBi, T5); where it is learnt, every form gives its gradient.
        causal: query t sees keys 0..t; for T = S and without a mask, which keeps the fastest path.
        dropout: the share of attention weights set to zero.

    Raises:
        ValueError: on a mask that is not bool: a float one would be *added*, silently; on unlike keys and values; where
            H is not a multiple of G.
    """
    if isinstance(mask, BlockMask):
        return attend_blocks(q, k, v, mask)
    _check(q, k, v, mask, causal)
    out = kernels.attention(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout)
    return attend_fused(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout) if out is None else out


def attend_fused(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S K"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T K"]:
    """`attend` by PyTorch's fused kernels, which never write the (T, S) scores to memory."""
    _check(q, k, v, mask, causal)
    if bias is not None:
        mask = _mask_bias(bias, mask, causal, q.dtype)
        causal = False
    is_grouped = q.shape[1] != k.shape[1]
    if mask is not None and is_grouped and q.device.type in FOLD_DEVICES:
        folded_q, mask = fold_groups(q, mask, k.shape[1])
        heads = F.scaled_dot_product_attention(folded_q, k, v, attn_mask=mask, dropout_p=dropout)
        return heads.unflatten(2, (-1, q.shape[2])).flatten(1, 2)  # (B, H, T, K)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=is_grouped
    )


def attend_by_hand(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S K"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    note: Note = lambda name, tensor: tensor,
) -> Float[Tensor, "B H T K"]:
    """`attend`, written out. The reader reads this one; tests hold it equal to the fused form.

    Args:
        note: is shown each tensor under its name, and gives what the pass goes on with in its place.
    """
    _check(q, k, v, mask, causal)
    q, k, v = note("q", q), note("k", k), note("v", v)
    scores = note("scores", attention_scores(q, k, bias=bias))  # (B, H, T, S)
    mask = causal_mask(scores) if causal else mask
    mask = None if mask is None else note("mask", mask)
    weights = note("weights", attention_weights(scores, mask=mask))
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return note("heads", weighted_values(weights, v))  # (B, H, T, K)


def attention_scores(
    q: Float[Tensor, "B H T K"], k: Float[Tensor, "B G S K"], *, bias: Bias | None = None
) -> Float[Tensor, "B H T S"]:
    """q kᵀ / √K + bias: how alike each query and key are."""
    scores = (q / math.sqrt(q.shape[-1])) @ _repeat_heads(k, q.shape[1]).mT
    return scores if bias is None else scores + bias


def attention_weights(scores: Float[Tensor, "B H T S"], *, mask: Mask | None = None) -> Float[Tensor, "B H T S"]:
    """The softmax of the scores: each row sums to one, or is zero where the query may see nothing."""
    if mask is not None:
        # The lowest finite number, not -inf: a row of -inf would have NaN gradients even where it is overwritten.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.float().softmax(-1).to(scores.dtype)  # in float32: bf16 loses the softmax's tail
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def weighted_values(weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B G S K"]) -> Float[Tensor, "B H T K"]:
    """For each query the mean of the values, by its weights."""
    return weights.to(v.dtype) @ _repeat_heads(v, weights.shape[1])


def causal_mask(scores: Float[Tensor, "B H T S"]) -> Bool[Tensor, "1 1 T S"]:
    """Query t sees keys 0..t."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()[None, None]


class Attention(nn.Module):
    """Attention with several heads: self-attention, causal or not, or cross-attention to another sequence.

    Args:
        d_model: width of the input and output.
        n_heads: query heads.
        n_kv_heads: key/value heads; a divisor of n_heads, n_heads itself by default. One is multi-query attention.
        d_head: width of a head; d_model / n_heads by default.
        bias: biases on the queries', keys' and values' projections.
        out_bias: a bias on the output's projection; as `bias` by default.
        qk_norm: RMS norm on the queries and keys of each head, before the rotation.
        dropout: on the attention weights.

    Example: `Attention(d_model=24, n_heads=4)(x, memory)`.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
        qk_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if d_head is None and d_model % n_heads:
            divisors = [n for n in range(1, d_model + 1) if d_model % n == 0]
            nearest = min(divisors, key=lambda n: abs(n - n_heads))
            raise ValueError(f"d_model={d_model} must be divisible by n_heads={n_heads}; try n_heads={nearest}")
        if n_heads % n_kv_heads:
            raise ValueError(f"n_heads={n_heads} must be divisible by n_kv_heads={n_kv_heads}")
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.dropout = dropout
        self.query = Linear(d_model, n_heads * self.d_head, bias=bias)
        self.key = Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.value = Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.out = Linear(n_heads * self.d_head, d_model, bias=bias if out_bias is None else out_bias)
        self.query_norm = RMSNorm(self.d_head, eps=QK_EPS) if qk_norm else nn.Identity()
        self.key_norm = RMSNorm(self.d_head, eps=QK_EPS) if qk_norm else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "Q T D"],
        source: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Mask | BlockMask | None = None,
        bias: Bias | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "Q T D"]:
        """Attend from `x` to `source`, or to `x` itself.

        Args:
            x: where the queries come from.
            source: where keys and values come from: x itself by default, the encoder's output in cross-attention. It
                may have fewer rows, Q = n B: n rows of x, next to each other, then share one of the source's.
            rotation: cosines and sines for queries and keys (Rotary).
            cache: remembers keys and values between calls; S is then what it holds.
        """
        source = x if source is None else source
        q = self.query_norm(self.query(x).unflatten(-1, (self.n_heads, self.d_head))).transpose(1, 2)  # (B, H, T, K)
        q = q if rotation is None else rotate(q, rotation)
        project = partial(self.keys_values, source, rotation)
        k, v = project() if cache is None else cache.keys_values(project)  # (B, G, S, K)
        dropout = self.dropout if self.training else 0.0
        rows = len(q)
        q = fold_beams(q, len(k))  # beams of one source ask it together: its keys and values are read once
        heads = self.attend(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout)
        heads = unfold_beams(heads, rows)  # (B, H, T, K)
        return self.out(heads.transpose(1, 2).flatten(-2))  # (B, T, D)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """The function `attend`; a method, so that whoever looks inside can put the formula in its place."""
        return attend(q, k, v, **options)

    def keys_values(
        self, source: Float[Tensor, "B S D"], rotation: Rotation | None = None
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]]:
        heads = (self.n_kv_heads, self.d_head)
        k = self.key_norm(self.key(source).unflatten(-1, heads)).transpose(1, 2)
        v = self.value(source).unflatten(-1, heads).transpose(1, 2)
        return (k if rotation is None else rotate(k, rotation)), v


def fold_beams(q: Float[Tensor, "Q H T K"], sources: int) -> Float[Tensor, "B H N K"]:
    """The queries of all rows that share a source, side by side: Q = n B rows of T become B rows of N = n T."""
    if len(q) == sources:
        return q
    if len(q) % sources:
        raise ValueError(f"{len(q)} rows of queries cannot share {sources} rows of keys equally")
    return q.unflatten(0, (sources, len(q) // sources)).transpose(1, 2).flatten(2, 3)


def unfold_beams(heads: Float[Tensor, "B H N K"], rows: int) -> Float[Tensor, "Q H T K"]:
    """The heads of B rows of N = n T queries as those of `rows` = n B rows of T."""
    if rows == len(heads):
        return heads
    return heads.unflatten(2, (rows // len(heads), -1)).transpose(1, 2).flatten(0, 1)


def fold_groups(
    q: Float[Tensor, "B H T K"], mask: Shaped[Tensor, "#B #H #T S"], groups: int
) -> tuple[Float[Tensor, "B G N K"], Shaped[Tensor, "#B #G #N S"]]:
    """The queries of all heads that share keys, side by side, N = H / G T of them for each key head; and their mask.

    On a GPU not every kernel of PyTorch that takes a mask takes grouped heads, depending on its version. Its formula
    would repeat keys and values, of a whole cache for each token.
    """
    heads_per_group = q.shape[1] // groups
    if mask.shape[1] > 1:
        mask = mask.unflatten(1, (groups, heads_per_group)).flatten(2, 3)
    elif mask.shape[2] > 1:
        mask = mask.repeat(1, 1, heads_per_group, 1)
    return q.unflatten(1, (groups, heads_per_group)).flatten(2, 3), mask


def _repeat_heads(x: Float[Tensor, "B G S K"], n_heads: int) -> Float[Tensor, "B H S K"]:
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def _mask_bias(bias: Tensor, mask: Tensor | None, causal: bool, dtype: torch.dtype) -> Tensor:
    if causal:
        mask = causal_mask(bias)
    return bias.to(dtype) if mask is None else bias.to(dtype).masked_fill(~mask, -math.inf)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> None:
    if k.shape[:-1] != v.shape[:-1]:  # PyTorch's kernel would read beyond the shorter ones
        raise ValueError(f"each key has a value: keys {list(k.shape)} need as many values, got {list(v.shape)}")
    if q.shape[1] % max(1, k.shape[1]):  # one head of queries would be repeated for each of the keys
        raise ValueError(f"{q.shape[1]} heads of queries cannot share {k.shape[1]} heads of keys equally")
    queries, keys = q.shape[-2], k.shape[-2]
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"a mask is bool, True where a query may see a key; got {mask.dtype}; try mask.bool()")
    if causal and (mask is not None or queries != keys):
        raise ValueError(
            f"causal=True is for as many queries as keys and no mask (T={queries}, S={keys}); "
            "put causality into the mask"
        )

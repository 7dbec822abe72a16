"""Attention: each query receives a weighted average of the values.

    attend(q, k, v) = softmax(cap(q kᵀ / √K) + bias) v        cap(x) = c tanh(x / c), or x without a cap

Vaswani et al., "Attention Is All You Need" (2017), equation 1. Fewer key/value heads than query heads: Shazeer (2019,
multi-query) and Ainslie et al. (2023, grouped-query). Norms on queries and keys: Henry et al. (2020); over all heads
together: OLMo 2 (2024). A cap c of the scores: Gemma 2 (2024), 2.

There is one difference from the formula: if a query may not attend to any key, the formula gives 0/0, and all
implementations return zero.
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
from tercet.nn.norm import JointRMSNorm, RMSNorm
from tercet.nn.positions import Rotation, rotate
from tercet.nn.specs import QKNorm

Mask = Bool[Tensor, "#B 1 #T S"]
Bias = Float[Tensor, "#B H T S"]
Note = Callable[[str, Tensor], Tensor]

FOLD_DEVICES: tuple[str, ...] = ("cuda",)  # devices on which `attend_fused` calls `fold_groups` if there is a mask
QK_EPS = 1e-6  # eps of the norms on queries and keys; `norm_eps` of the spec does not apply to them


def attend(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S K"],
    *,
    mask: Mask | BlockMask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    softcap: float | None = None,
) -> Float[Tensor, "B H T K"]:
    """Compute attention with the fastest implementation available for these tensors.

    Args:
        q, k, v: Queries, keys and values. Each key/value head is shared by H / G consecutive query heads.
        mask: True where a query may attend to a key (default: every query may attend to every key). If attention is
            causal too, the mask must also hide later keys. On a GPU, the mask may be a `BlockMask` from
            `document_blocks`; `bias`, `causal` and `dropout` are then ignored.
        bias: Numbers added to the scores (ALiBi, T5). Every implementation computes the gradient of a learned bias.
        causal: If True, query t attends to keys 0..t. Requires T = S and no mask; this is the fastest path.
        dropout: Share of attention weights that are set to zero (default: 0).
        softcap: Bound c of the scores before bias and mask; None for no bound. No fused implementation supports it, so
            attention is then computed step by step.

    Raises:
        ValueError: If the mask is not bool (PyTorch would silently add a float mask), if the shapes of keys and values
            differ before the last axis, if H is not a multiple of G, or if `causal` is combined with a mask or with
            T != S. With a `BlockMask` nothing is checked, and there can be no softcap.
    """
    if isinstance(mask, BlockMask):
        return attend_blocks(q, k, v, mask)
    if softcap is not None:
        return attend_by_hand(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout, softcap=softcap)
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
    """Compute `attend` with PyTorch's fused kernels, which do not store the (T, S) scores.

    If no fused kernel supports the tensors, `scaled_dot_product_attention` computes the formula step by step.
    """
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
    softcap: float | None = None,
    note: Note = lambda name, tensor: tensor,
) -> Float[Tensor, "B H T K"]:
    """Compute `attend` step by step.

    This is the implementation to read. Tests compare it with the fused one. The arguments are those of `attend`, except
    that the mask must be a tensor.

    Args:
        note: Function called with the name and value of each intermediate tensor: q, k, v, scores, mask (if any),
            weights and heads. Its result replaces the tensor in the computation.
    """
    _check(q, k, v, mask, causal)
    q, k, v = note("q", q), note("k", k), note("v", v)
    scores = note("scores", attention_scores(q, k, bias=bias, softcap=softcap))  # (B, H, T, S)
    mask = causal_mask(scores) if causal else mask
    mask = None if mask is None else note("mask", mask)
    weights = note("weights", attention_weights(scores, mask=mask))
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return note("heads", weighted_values(weights, v))  # (B, H, T, K)


def attention_scores(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    *,
    bias: Bias | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "B H T S"]:
    """Return cap(q kᵀ / √K) + bias, the similarity of each query and key."""
    scores = (q / math.sqrt(q.shape[-1])) @ _repeat_heads(k, q.shape[1]).mT
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    return scores if bias is None else scores + bias


def attention_weights(scores: Float[Tensor, "B H T S"], *, mask: Mask | None = None) -> Float[Tensor, "B H T S"]:
    """Return the softmax of the scores. A row without visible keys is zero."""
    if mask is not None:
        # The lowest finite number, not -inf: a row of -inf would have NaN gradients, even if it is overwritten.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.float().softmax(-1).to(scores.dtype)  # in float32: bfloat16 loses the tail of the softmax
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def weighted_values(weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B G S K"]) -> Float[Tensor, "B H T K"]:
    """Return the average of the values for each query, weighted by its attention weights."""
    return weights.to(v.dtype) @ _repeat_heads(v, weights.shape[1])


def causal_mask(scores: Float[Tensor, "B H T S"]) -> Bool[Tensor, "1 1 T S"]:
    """Return a mask in which query t attends to keys 0..t, with the size and device of `scores`."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()[None, None]


class Attention(nn.Module):
    """Multi-head attention: self-attention, causal or not, or cross-attention to another sequence.

    Args:
        d_model: Width of the input and output.
        n_heads: Number of query heads.
        n_kv_heads: Number of key/value heads, which must divide n_heads (default: n_heads). One is multi-query
            attention.
        d_head: Width of a head (default: d_model / n_heads).
        bias: If True, the projections of queries, keys and values have biases.
        out_bias: If True, the output projection has a bias (default: the value of `bias`).
        qk_norm: If True, apply an RMS norm to the queries and keys of each head before the rotation. With `all_heads`,
            a token's queries of all heads have one norm together, and so have its keys (OLMo 2).
        dropout: Dropout rate of the attention weights.
        softcap: Bound of the attention scores; see `attend`.

    Raises:
        ValueError: If n_heads does not divide d_model and no d_head is given, or if n_kv_heads does not divide n_heads.

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
        qk_norm: QKNorm = False,
        dropout: float = 0.0,
        softcap: float | None = None,
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
        self.dropout, self.softcap = dropout, softcap
        self.query = Linear(d_model, n_heads * self.d_head, bias=bias)
        self.key = Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.value = Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.out = Linear(n_heads * self.d_head, d_model, bias=bias if out_bias is None else out_bias)
        self.query_norm = _head_norm(qk_norm, n_heads, self.d_head)
        self.key_norm = _head_norm(qk_norm, n_kv_heads, self.d_head)

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
            x: Sequence that the queries are projected from.
            source: Sequence that keys and values are projected from: the encoder's output in cross-attention (default:
                `x`). It may have fewer rows: if Q = n B, each n consecutive rows of `x` share one row of the source.
                Ignored if the cache already contains the keys and values of cross-attention.
            mask, bias, causal: See `attend`.
            rotation: Cosines and sines to rotate queries and keys by (Rotary).
            cache: KV cache that keeps keys and values between calls. S is then the number of columns of the cache.
        """
        source = x if source is None else source
        q = self.query_norm(self.query(x).unflatten(-1, (self.n_heads, self.d_head))).transpose(1, 2)  # (Q, H, T, K)
        q = q if rotation is None else rotate(q, rotation)
        project = partial(self.keys_values, source, rotation)
        k, v = project() if cache is None else cache.keys_values(project)  # (B, G, S, K)
        dropout = self.dropout if self.training else 0.0
        rows = len(q)
        q = fold_beams(q, len(k))  # the keys and values of a source are then read once for all of its beams
        heads = self.attend(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout, softcap=self.softcap)
        heads = unfold_beams(heads, rows)  # (Q, H, T, K)
        return self.out(heads.transpose(1, 2).flatten(-2))  # (Q, T, D)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Call the function `attend`. This is a method, so that `record` can replace it by `attend_by_hand`."""
        return attend(q, k, v, **options)

    def keys_values(
        self, source: Float[Tensor, "B S D"], rotation: Rotation | None = None
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]]:
        """Project `source` to keys and values, and rotate the keys if `rotation` is given."""
        heads = (self.n_kv_heads, self.d_head)
        k = self.key_norm(self.key(source).unflatten(-1, heads)).transpose(1, 2)
        v = self.value(source).unflatten(-1, heads).transpose(1, 2)
        return (k if rotation is None else rotate(k, rotation)), v


def fold_beams(q: Float[Tensor, "Q H T K"], sources: int) -> Float[Tensor, "B H N K"]:
    """Fold rows that share a source: Q = n B rows of T queries become B rows of N = n T queries.

    Args:
        q: Queries. Each n consecutive rows share a source.
        sources: Number B of sources.

    Raises:
        ValueError: If `sources` does not divide the number of rows.
    """
    if len(q) == sources:
        return q
    if len(q) % sources:
        raise ValueError(
            f"the number of query rows must be a multiple of the number of key rows: {len(q)} and {sources}"
        )
    return q.unflatten(0, (sources, len(q) // sources)).transpose(1, 2).flatten(2, 3)


def unfold_beams(heads: Float[Tensor, "B H N K"], rows: int) -> Float[Tensor, "Q H T K"]:
    """Undo `fold_beams`: B rows of N = n T queries become `rows` = n B rows of T queries."""
    if rows == len(heads):
        return heads
    return heads.unflatten(2, (rows // len(heads), -1)).transpose(1, 2).flatten(0, 1)


def fold_groups(
    q: Float[Tensor, "B H T K"], mask: Shaped[Tensor, "#B #H #T S"], groups: int
) -> tuple[Float[Tensor, "B G N K"], Shaped[Tensor, "#B #G #N S"]]:
    """Fold the query heads that share a key head: H heads of T queries become G heads of N = T H / G queries.

    The mask is repeated or reshaped accordingly. Whether PyTorch's GPU kernels accept a mask together with grouped
    heads depends on the version of PyTorch. Its fallback would repeat keys and values, which in decoding copies the
    whole KV cache for each token.

    Args:
        q: Queries.
        mask: Mask, or biases that include it.
        groups: Number G of key/value heads.
    """
    heads_per_group = q.shape[1] // groups
    if mask.shape[1] > 1:
        mask = mask.unflatten(1, (groups, heads_per_group)).flatten(2, 3)
    elif mask.shape[2] > 1:
        mask = mask.repeat(1, 1, heads_per_group, 1)
    return q.unflatten(1, (groups, heads_per_group)).flatten(2, 3), mask


def _head_norm(kind: QKNorm, n_heads: int, d_head: int) -> nn.Module:
    if kind == "all_heads":
        return JointRMSNorm(n_heads * d_head, eps=QK_EPS)
    return RMSNorm(d_head, eps=QK_EPS) if kind else nn.Identity()


def _repeat_heads(x: Float[Tensor, "B G S K"], n_heads: int) -> Float[Tensor, "B H S K"]:
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def _mask_bias(bias: Tensor, mask: Tensor | None, causal: bool, dtype: torch.dtype) -> Tensor:
    if causal:
        mask = causal_mask(bias)
    return bias.to(dtype) if mask is None else bias.to(dtype).masked_fill(~mask, -math.inf)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> None:
    if k.shape[:-1] != v.shape[:-1]:  # PyTorch's kernel would read beyond the shorter one
        raise ValueError(
            f"keys and values must have the same shape up to the last axis: {list(k.shape)} and {list(v.shape)}"
        )
    if q.shape[1] % max(1, k.shape[1]):  # broadcasting would repeat a single query head for each key head
        raise ValueError(
            f"the number of query heads must be a multiple of the number of key heads: {q.shape[1]} and {k.shape[1]}"
        )
    queries, keys = q.shape[-2], k.shape[-2]
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, True where a query may attend to a key: {mask.dtype}; try mask.bool()")
    if causal and (mask is not None or queries != keys):
        raise ValueError(
            f"causal=True requires as many queries as keys and no mask: T={queries}, S={keys}; "
            "include causality in the mask"
        )

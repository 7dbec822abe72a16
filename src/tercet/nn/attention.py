"""Attention: every query looks at all keys it may see, and takes the mean of their values, weighted by likeness.

    attend(q, k, v) = softmax(q kᵀ / √K + bias) v

Vaswani et al., "Attention Is All You Need" (2017), equation 1. Fewer key/value heads than query heads: Shazeer (2019,
multi-query) and Ainslie et al. (2023, grouped-query). Norms on queries and keys: Henry et al. (2020).
Where we differ: a query that may see no key at all takes zeros, in both forms, where the formula gives 0/0.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tercet.kernel import attend_whole, few_queries, seen_softmax, takes_queries, takes_softmax, takes_whole
from tercet.nn.cache import KeysValues
from tercet.nn.linear import Linear
from tercet.nn.norm import RMSNorm
from tercet.nn.positions import Rotation, rotate

Mask = Bool[Tensor, "#B 1 #T S"]
Bias = Float[Tensor, "#B H T S"]


# Keys up to which, on a CPU, the formula written out takes less time than PyTorch's kernel: in fp32 as it
# comes, and where small products go through oneDNN (bf16, or fp32 let in), which that kernel is slow with
# (docs/measurements/kernels.md).
SHORT, SHORT_BY_ONEDNN = 128, 1024


def attend(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B G S K"],
    v: Float[Tensor, "B G S K"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T K"]:
    """The formula above, in the form that is faster here.

    Args:
        mask: True where a query may see a key. Includes causality, if that is wanted beside it.
        bias: added to the scores (ALiBi).
        causal: query t sees keys 0..t; for T = S and without a mask, which keeps the fastest path.
        dropout: the share of attention weights set to zero.

    Raises:
        ValueError: on a mask that is not bool: a float one would be *added*, silently.
    """
    if bias is None and not causal and not dropout and takes_queries(q, k, v):
        _check(q.shape[-2], k.shape[-2], mask, causal)
        return few_queries(q, k, v, mask)
    if bias is None and not dropout and takes_whole(q, k, v):
        _check(q.shape[-2], k.shape[-2], mask, causal)
        return attend_whole(q, k, v, mask=mask, causal=causal)
    # The compiler can't follow the question by what fp32 is multiplied; what it compiles takes the shorter bound.
    compiling = torch.compiler.is_compiling()
    as_it_comes = q.dtype == torch.float32 and (compiling or torch.get_float32_matmul_precision() == "highest")
    few = k.shape[-2] <= (SHORT if as_it_comes else SHORT_BY_ONEDNN) or q.shape[-2] == 1
    by_hand = q.device.type == "cpu" and few and not torch.compiler.is_exporting()
    form = attend_by_hand if by_hand else attend_fused
    return form(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout)


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
    _check(q.shape[-2], k.shape[-2], mask, causal)
    if bias is not None:
        mask = _as_bias(bias, mask, causal, q.dtype)
        causal = False
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=grouped
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
) -> Float[Tensor, "B H T K"]:
    """`attend`, written out. The reader reads this one; tests hold it equal to the fused form."""
    weights = attention_weights(attention_scores(q, k, bias=bias), mask=mask, causal=causal)  # (B, H, T, S)
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return weighted_values(weights, v)  # (B, H, T, K)


def attention_scores(
    q: Float[Tensor, "B H T K"], k: Float[Tensor, "B G S K"], *, bias: Bias | None = None
) -> Float[Tensor, "B H T S"]:
    """q kᵀ / √K + bias: how alike each query and key are."""
    scores = (q / math.sqrt(q.shape[-1])) @ _one_per_query_head(k, q.shape[1]).mT
    return scores if bias is None else scores + bias


def attention_weights(
    scores: Float[Tensor, "B H T S"], *, mask: Mask | None = None, causal: bool = False
) -> Float[Tensor, "B H T S"]:
    """The softmax of the scores: each row sums to one, or is zero where the query may see nothing."""
    _check(scores.shape[-2], scores.shape[-1], mask, causal)
    if takes_softmax(scores):
        return seen_softmax(scores, mask=mask, causal=causal)
    unseen = ~causal_mask(scores) if causal else None if mask is None else ~mask
    if unseen is not None:
        # The lowest finite number, not -inf: a row of -inf would have NaN gradients even where it is overwritten.
        scores = scores.masked_fill(unseen, torch.finfo(scores.dtype).min)
    weights = scores.float().softmax(-1).to(scores.dtype)  # in float32: bf16 loses the softmax's tail
    # A row that sees nothing is zeros; by causality alone each sees itself.
    return weights if causal or unseen is None else weights.masked_fill(unseen, 0.0)


def weighted_values(weights: Float[Tensor, "B H T S"], v: Float[Tensor, "B G S K"]) -> Float[Tensor, "B H T K"]:
    """For each query the mean of the values, by its weights."""
    return weights.to(v.dtype) @ _one_per_query_head(v, weights.shape[1])


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
            fits = [n for n in range(1, d_model + 1) if d_model % n == 0]
            near = min(fits, key=lambda n: abs(n - n_heads))
            raise ValueError(f"d_model={d_model} must be divisible by n_heads={n_heads}; try n_heads={near}")
        if n_heads % n_kv_heads:
            raise ValueError(f"n_heads={n_heads} must be divisible by n_kv_heads={n_kv_heads}")
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.dropout = dropout
        self.query = Linear(d_model, n_heads * self.d_head, bias=bias)
        self.key = Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.value = Linear(d_model, n_kv_heads * self.d_head, bias=bias)
        self.out = Linear(n_heads * self.d_head, d_model, bias=bias if out_bias is None else out_bias)
        self.query_norm = RMSNorm(self.d_head) if qk_norm else nn.Identity()
        self.key_norm = RMSNorm(self.d_head) if qk_norm else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "Q T D"],
        source: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
        cache: KeysValues | None = None,
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
        k, v = (
            self.keys_values(source, rotation) if cache is None else cache.keys_values(self, source, rotation)
        )  # (B, G, S, K)
        dropout = self.dropout if self.training else 0.0
        rows = len(q)
        q = _together(q, len(k))  # beams of one source ask it together: its keys and values are read once
        heads = self.attend(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout)
        heads = _apart(heads, rows)  # (B, H, T, K)
        return self.out(heads.transpose(1, 2).flatten(-2))  # (B, T, D)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        """The function `attend`; a method, so that whoever looks inside can put the formula in its place."""
        return attend(q, k, v, **how)

    def keys_values(
        self, source: Float[Tensor, "B S D"], rotation: Rotation | None = None
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]]:
        heads = (self.n_kv_heads, self.d_head)
        k = self.key_norm(self.key(source).unflatten(-1, heads)).transpose(1, 2)
        v = self.value(source).unflatten(-1, heads).transpose(1, 2)
        return (k if rotation is None else rotate(k, rotation)), v


def _together(q: Float[Tensor, "Q H T K"], sources: int) -> Float[Tensor, "B H N K"]:
    """The queries of all rows that share a source, side by side: Q = n B rows of T become B rows of N = n T."""
    if len(q) == sources:
        return q
    if len(q) % sources:
        raise ValueError(f"{len(q)} rows of queries cannot share {sources} rows of keys equally")
    return q.unflatten(0, (sources, len(q) // sources)).transpose(1, 2).flatten(2, 3)


def _apart(heads: Float[Tensor, "B H N K"], rows: int) -> Float[Tensor, "Q H T K"]:
    if rows == len(heads):
        return heads
    return heads.unflatten(2, (rows // len(heads), -1)).transpose(1, 2).flatten(0, 1)


def _one_per_query_head(x: Float[Tensor, "B G S K"], n_heads: int) -> Float[Tensor, "B H S K"]:
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def _as_bias(bias: Tensor, mask: Tensor | None, causal: bool, dtype: torch.dtype) -> Tensor:
    if causal:
        mask = causal_mask(bias)
    return bias.to(dtype) if mask is None else bias.to(dtype).masked_fill(~mask, -math.inf)


def _check(queries: int, keys: int, mask: Tensor | None, causal: bool) -> None:
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"a mask is bool, True where a query may see a key; got {mask.dtype}; try mask.bool()")
    if causal and (mask is not None or queries != keys):
        raise ValueError(
            f"causal=True is for as many queries as keys and no mask (T={queries}, S={keys}); "
            "put causality into the mask"
        )

"""Attention over whole sequences on a CPU, forward and backward, without writing the (T, S) scores.

In causal attention, the scores of later keys are not computed. PyTorch's CPU kernel takes up to twice as long, and
several times as long in bfloat16. Without a fused kernel, attention makes about twelve passes over the scores, the
largest tensor of a layer.

As in Dao et al., "FlashAttention" (2022), the backward pass recomputes the attention weights.
"""

from typing import Any

import torch
from torch import Tensor

from tercet.kernel.build import constant_when_compiled, kernel_of, mask_strides
from tercet.kernel.contract import Contract, Sizes
from tercet.kernel.operators import differentiable, operator
from tercet.kernel.threads import is_thread_independent, kernel_threads
from tercet.kernel.tuning import is_faster, product_dtype

MIN_WORK = 1 << 17  # minimum number of scores for which compiling the kernel pays
FLOATS = "float32|bfloat16|float16"
INPUT = Contract(
    "flash_attention", q=f"{FLOATS}[B H%G T K%16] strided", k=f"{FLOATS}[B G S K] strided",
    v=f"{FLOATS}[B G S K] strided", mask="bool[#B 1 #T S]? strided",
)  # fmt: skip
HEADS = {"q": "float32|bfloat16[B H%G T K%16] rows", "k": "q[B G S K] rows", "v": "q[B G S K] rows"}
MASK = "bool[#B 1 #T S]?"
FORWARD = Contract("flash_attention", **HEADS, mask=MASK)
BACKWARD = Contract(
    "flash_attention_backward", **HEADS, y="q[B H T K] rows", grad_output="q[B H T K] strided",
    logsumexp="float32[B H T]", mask=MASK,
)  # fmt: skip


def supports_flash_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False
) -> bool:
    """Return whether the kernel supports this attention and is expected to be faster than PyTorch.

    Args:
        q: (B, H, T, K).
        k, v: (B, G, S, K).
        mask, causal: Arguments of `flash_attention`.
    """
    batch, heads, queries, _ = q.shape
    return (
        not torch.compiler.is_exporting()
        and batch * heads * queries * k.shape[2] >= MIN_WORK
        and (batch * k.shape[1] >= _threads() or is_thread_independent())
        and (q.dtype == k.dtype == v.dtype or torch.is_autocast_enabled("cpu"))
        and not (causal and (mask is not None or queries != k.shape[2]))
        and INPUT.fits(q, k, v, mask)
        and is_faster("flash_attention", product_dtype(q), batch * heads * queries * k.shape[2])
    )


def flash_attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
    """Return softmax(q kT / sqrt(K)) v. Requires `supports_flash_attention`.

    Args:
        q: (B, H, T, K).
        k, v: (B, G, S, K). Each of the G heads is shared by consecutive query heads.
        mask: (B or 1, 1, T or 1, S) bool, True if a query may attend to a key; None if each may attend to all. A query
            without keys gives zeros.
        causal: If True, query t attends to keys 0..t. Requires T = S and no mask.

    Returns:
        (B, H, T, K), stored as (B, T, H, K).
    """
    q, k, v = (_contiguous_rows(x.to(product_dtype(x))) for x in (q, k, v))
    return _differentiable(q, k, v, None if mask is None else mask.contiguous(), causal)[0]


def _fake(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    return _empty_by_tokens(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


@operator("flash_attention", _fake)
def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the output of attention, (B, H, T, K), and the logsumexp of each query's scores, (B, H, T)."""
    sizes = FORWARD.sizes(q, k, v, mask)
    y, logsumexp = _fake(q, k, v, mask, causal)
    _call("flash_attention_forward", (q, k, v, y), mask, logsumexp, causal, sizes)
    return y, logsumexp


def _fake_backward(
    grad_output: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, logsumexp: Tensor, mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_by_tokens(q), _empty_by_tokens(k), _empty_by_tokens(v)


@operator("flash_attention_backward", _fake_backward)
def _backward(
    grad_output: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, logsumexp: Tensor, mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    sizes = BACKWARD.sizes(q, k, v, y, grad_output, logsumexp, mask)
    grad_output = _contiguous_rows(grad_output)
    gradients = _empty_by_tokens(q), _empty_by_tokens(k), _empty_by_tokens(v)
    _call("flash_attention_backward", (q, k, v, y, grad_output, *gradients), mask, logsumexp, causal, sizes)
    return gradients


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, *output, mask)


def _gradients(ctx: Any, grad_output: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, y, logsumexp, mask = ctx.saved_tensors
    return *_backward(grad_output, q, k, v, y, logsumexp, mask, ctx.causal), None, None


_differentiable = differentiable(_forward, _setup_context, _gradients)


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


@constant_when_compiled
def _threads() -> int:
    return torch.get_num_threads()


def _empty_by_tokens(x: Tensor) -> Tensor:
    """Return an empty (B, H, T, K) tensor, stored as (B, T, H, K)."""
    _, heads, tokens, d_head = x.shape
    return x.new_empty_strided(x.shape, (tokens * heads * d_head, d_head, heads * d_head, 1))


def _call(
    name: str, tensors: tuple[Tensor, ...], mask: Tensor | None, logsumexp: Tensor, causal: bool, sizes: Sizes
) -> None:
    batch, heads, groups, queries, keys, d_head = (sizes[axis] for axis in "BHGTSK")
    if causal and (mask is not None or queries != keys):
        raise ValueError(f"{name}: causal requires no mask and as many queries as keys: T={queries}, S={keys}")
    integers = (batch, heads, groups, queries, keys, d_head, int(causal), *mask_strides(mask))
    addresses = [number for x in tensors for number in (x.data_ptr(), *x.stride())]
    kernel_of(name, tensors[0].dtype)(addresses, mask, logsumexp, integers, kernel_threads())

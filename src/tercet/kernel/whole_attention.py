"""Attention over whole sequences, there and back, where the CPU multiplies bfloat16: the (T, S) scores are never
written, nor is what causality hides worked out. PyTorch's kernel for CPUs takes several times as long in bfloat16, and
the formula written out is a dozen passes over the largest tensor of a layer.

As Dao et al., "FlashAttention" (2022) have it on a GPU: the backward pass works the weights out once more.
"""

from typing import Any

import torch
from torch import Tensor

from tercet.kernel.compiled import library, mask_strides, multiplies_bfloat16, words
from tercet.kernel.operators import differentiable, operator

WORTH = 1 << 17  # scores from which it is worth having the kernel compiled
STEP = 16  # the width of a head is a multiple of it


def takes_whole(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether this attention is one for the kernel: bfloat16, or what is to be multiplied in it, on such a CPU.

    Args:
        q: (B, H, T, K).
        k, v: (B, G, S, K).
    """
    batch, heads, queries, wide = q.shape
    return (
        not torch.compiler.is_exporting()
        and q.device.type == "cpu"
        and batch * heads * queries * k.shape[2] >= WORTH
        and _type(q) == torch.bfloat16
        and wide % STEP == 0
        and wide == v.shape[-1]
        and batch * k.shape[1] >= _threads()
        and multiplies_bfloat16()
    )


def attend_whole(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
    """softmax(q kT / sqrt(K)) v; ask `takes_whole` before.

    Args:
        q: (B, H, T, K).
        k, v: (B, G, S, K); heads next to each other share one of the G.
        mask: (B or 1, 1, T or 1, S) bool: True where a query may see a key. One that sees none takes zeros.
        causal: query t sees keys 0..t, and there is no mask.

    Returns:
        (B, H, T, K) bfloat16, in memory (B, T, H, K).
    """
    q, k, v = (_along_rows(x.to(torch.bfloat16)) for x in (q, k, v))
    return _learning(q, k, v, None if mask is None else mask.contiguous(), causal)[0]


def _places(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    return _by_tokens(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


@operator("whole_attention", _places)
def _there(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """What the queries take, and the logarithms of their softmax's sums."""
    y, logs = _places(q, k, v, mask, causal)
    _call("whole_attention", (q, k, v, y), mask, logs, causal)
    return y, logs


def _places_back(
    slopes: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, logs: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _by_tokens(q), _by_tokens(k), _by_tokens(v)


@operator("whole_attention_back", _places_back)
def _back(
    slopes: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, logs: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    slopes = _along_rows(slopes)
    found = _by_tokens(q), _by_tokens(k), _by_tokens(v)
    _call("whole_attention_back", (q, k, v, y, slopes, *found), mask, logs, causal)
    return found


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, *output, mask)


def _gradients(ctx: Any, slopes: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, y, logs, mask = ctx.saved_tensors
    return *_back(slopes, q, k, v, y, logs, mask, ctx.causal), None, None


_learning = differentiable(_there, _keep, _gradients)


def _along_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


@torch.compiler.assume_constant_result
def _threads() -> int:
    return torch.get_num_threads()


def _type(x: Tensor) -> torch.dtype:
    """In which it would be multiplied; float64 stays what it is in mixed precision, too."""
    mixed = torch.is_autocast_enabled("cpu") and x.dtype != torch.float64
    return torch.get_autocast_dtype("cpu") if mixed else x.dtype


def _by_tokens(like: Tensor) -> Tensor:
    """(B, H, T, K) that lies in memory as (B, T, H, K)."""
    _, heads, tokens, wide = like.shape
    return like.new_empty_strided(like.shape, (tokens * heads * wide, wide, heads * wide, 1))


def _call(name: str, tensors: tuple[Tensor, ...], mask: Tensor | None, logs: Tensor, causal: bool) -> None:
    kernels = library()
    assert kernels is not None
    q, k = tensors[:2]
    batch, heads, queries, wide = q.shape
    sizes = (batch, heads, k.shape[1], queries, k.shape[2], wide, int(causal), *mask_strides(mask))
    places = [number for x in tensors for number in (x.data_ptr(), *x.stride())]
    getattr(kernels, name)(
        words(places), None if mask is None else mask.data_ptr(), logs.data_ptr(),
        words(sizes), torch.get_num_threads(),
    )  # fmt: skip

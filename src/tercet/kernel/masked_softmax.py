"""Masked softmax of attention scores.

The CPU kernel reads each row once in the forward and once in the backward pass. In PyTorch, masking, conversion to
float32, softmax and conversion back are ten passes over the largest tensor of a layer.
"""

from typing import Any

import torch
from torch import Tensor

from tercet.kernel.build import kernel_of, mask_strides, supports_elements
from tercet.kernel.contract import Contract, Sizes
from tercet.kernel.operators import differentiable, operator
from tercet.kernel.threads import kernel_threads

MIN_WORK = 1 << 20  # minimum number of scores for which compiling the kernel pays
SCORES = "float32|bfloat16[B H T S]"
INPUT = Contract("masked_softmax", scores=f"{SCORES} strided", mask="bool[#B 1 #T S]? strided")
FORWARD = Contract("masked_softmax", scores=SCORES, mask="bool[#B 1 #T S]?")
BACKWARD = Contract("masked_softmax_backward", weights=SCORES, grad_output=f"{SCORES} strided")


def masked_softmax(scores: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
    """Return attention weights that sum to one over the visible keys of a query, and are zero for the others.

    Args:
        scores: (B, H, T, S).
        mask: (B or 1, 1, T or 1, S) bool, True if a query may attend to a key. A query without keys gives zeros.
        causal: If True, query t attends to keys 0..t. There must be no mask.

    Returns:
        (B, H, T, S) in the dtype of the scores.
    """
    if supports_elements(scores, MIN_WORK) and _is_possible(scores, mask, causal) and INPUT.fits(scores, mask):
        return _differentiable(scores.contiguous(), None if mask is None else mask.contiguous(), causal)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    is_masked = None if mask is None else ~mask
    if is_masked is not None:
        # The lowest finite number, not -inf: a row of -inf would have NaN gradients, even if it is overwritten.
        scores = scores.masked_fill(is_masked, torch.finfo(scores.dtype).min)
    weights = scores.float().softmax(-1).to(scores.dtype)  # in float32: bfloat16 loses the tail of the softmax
    # A row without visible keys is zero. With only causality, each query attends at least to itself.
    return weights if causal or is_masked is None else weights.masked_fill(is_masked, 0.0)


def _fake(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return torch.empty_like(scores)


@operator("masked_softmax", _fake)
def _forward(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    sizes = FORWARD.sizes(scores, mask)
    weights = torch.empty_like(scores)
    _call("softmax", scores, weights, mask, sizes=_integers(sizes, mask, causal))
    return weights


def _fake_backward(grad_output: Tensor, weights: Tensor, causal: bool) -> Tensor:
    return torch.empty_like(weights)


@operator("masked_softmax_backward", _fake_backward)
def _backward(grad_output: Tensor, weights: Tensor, causal: bool) -> Tensor:
    sizes = BACKWARD.sizes(weights, grad_output)
    grad_output = grad_output.to(weights.dtype).contiguous()
    grad_scores = torch.empty_like(weights)
    _call("softmax_backward", weights, grad_output, grad_scores, sizes=_integers(sizes, None, causal))
    return grad_scores


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.causal = inputs[2]
    ctx.save_for_backward(output)


def _gradients(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
    (weights,) = ctx.saved_tensors
    return _backward(grad_output, weights, ctx.causal), None, None


_differentiable = differentiable(_forward, _setup_context, _gradients)


def _is_possible(scores: Tensor, mask: Tensor | None, causal: bool) -> bool:
    return not causal or (mask is None and scores.shape[-2] <= scores.shape[-1])


def _integers(sizes: Sizes, mask: Tensor | None, causal: bool) -> tuple[int, ...]:
    batch, heads, queries, keys = (sizes[axis] for axis in "BHTS")
    if causal and (mask is not None or queries > keys):
        raise ValueError(f"masked_softmax: causal requires no mask and T <= S: T={queries}, S={keys}")
    return (batch * heads * queries, heads, queries, keys, int(causal), *mask_strides(mask))


def _call(name: str, first: Tensor, second: Tensor, third: Tensor | None, *, sizes: tuple[int, ...]) -> None:
    kernel_of(name, first.dtype)(first, second, third, sizes, kernel_threads())

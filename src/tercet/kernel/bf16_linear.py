"""A linear layer of float32 weights, multiplied in bfloat16 where the CPU does that, forward and backward.

In mixed precision PyTorch narrows every weight, keeps that copy for the backward pass, multiplies, finds the weight's
gradient in bfloat16 and widens it, and adds up the bias's in a pass of its own. Here weights and their gradients are
float32 and nothing else: they are narrowed as they are packed to be multiplied, and sums stay as exact as they were
made.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.build import kernels, multiplies_bfloat16
from tercet.kernel.operators import differentiable, operator

WORTH = 1 << 20  # multiplications from which it is worth having the kernel compiled
FEW = 16  # rows from which weights are worth packing
STEP = 16  # in_features is a multiple of it, and so is the width of what the kernel gives


def supports_bf16_linear(x: Tensor, weight: Tensor, *, padded: bool = False) -> bool:
    """Whether this product is one for the kernel: of a float32 weight, to be multiplied in bfloat16, on such a CPU.

    Args:
        x: (..., K).
        weight: (N, K).
        padded: whether zeros after the N numbers of a row will do.
    """
    rows = x.numel() // x.shape[-1]
    return (
        torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and not torch.compiler.is_exporting()
        and x.device.type == weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and x.dtype in (torch.float32, torch.bfloat16)
        and rows >= FEW
        and rows * weight.numel() >= WORTH
        and weight.shape[1] % STEP == 0
        and (padded or weight.shape[0] % STEP == 0)
        and weight.is_contiguous()
        and multiplies_bfloat16()
    )


def bf16_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x wT + b; ask `supports_bf16_linear` before.

    Args:
        x: (..., K), to be multiplied in bfloat16.
        weight: (N, K) float32.
        bias: (N) float32.

    Returns:
        (..., N) bfloat16.
    """
    return _differentiable(x.to(torch.bfloat16).contiguous(), weight, bias)


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], -(-weight.shape[0] // STEP) * STEP))


@operator("linear", _fake)
def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x wT + b, and zeros up to a width of whole sixteens. x is bfloat16 without gaps, a bias is for such N alone."""
    y = _fake(x, weight, bias)
    out_features, in_features = weight.shape
    kernels().linear_forward(
        x, weight, bias, y, x.numel() // in_features, in_features, out_features, torch.get_num_threads()
    )
    return y


def _fake_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, needs_grad: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if needs_grad[0] else 0),
        weight.new_empty(weight.shape if needs_grad[1] else 0),
        weight.new_empty(len(weight) if needs_grad[2] else 0),
    )


@operator("linear_backward", _fake_backward)
def linear_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, needs_grad: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias from that of what `linear_forward` gave; empty where they are not needed."""
    gradients = _fake_backward(grad_output, x, weight, needs_grad)
    out_features, in_features = weight.shape
    kernels().linear_backward(
        grad_output.contiguous(), x, weight, *gradients, x.numel() // in_features, in_features, out_features,
        torch.get_num_threads(),
    )  # fmt: skip
    return gradients


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_grad = ctx.needs_input_grad
    gradients = linear_backward(grad_output, x, weight, needs_grad)
    return tuple(gradient if needs else None for gradient, needs in zip(gradients, needs_grad, strict=True))


_differentiable = differentiable(linear_forward, _setup_context, _gradients)

"""A linear layer of float32 weights that learns, multiplied in float32 or, where the CPU does that and it is asked for,
in bfloat16.

All gradients come from one call, the bias's among them, whose sum is a pass of its own in PyTorch. In mixed precision
PyTorch narrows every weight, keeps that copy for the backward pass, multiplies, finds the weight's gradient in bfloat16
and widens it. Here weights and their gradients are float32 and nothing else: they are narrowed as they are packed to be
multiplied, and sums stay as exact as they were made.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.build import kernel_of
from tercet.kernel.contract import Contract, count_rows
from tercet.kernel.operators import differentiable, operator
from tercet.kernel.threads import kernel_threads
from tercet.kernel.tuning import is_faster, product_dtype

MIN_WORK = 1 << 20  # multiplications from which it is worth having the kernel compiled
MIN_ROWS = 16  # rows from which weights are worth packing
STEP = 16  # in_features is a multiple of it, and so is the width of what the kernel gives
INPUT = Contract("linear", weight="float32[N K%16]", x="float32|bfloat16[* K] strided", bias="float32[N]?")
FORWARD = Contract("linear", weight="float32[N K%16]", x="float32|bfloat16[* K]", bias="float32[N%16]?")
BACKWARD = Contract(
    "linear_backward", weight="float32[N K%16]", x="float32|bfloat16[* K]", grad_output="x[* P] strided"
)


def supports_training_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, padded: bool = False) -> bool:
    """Whether this product is one for the kernel: of a float32 weight, on a CPU.

    Args:
        x: (..., K).
        weight: (N, K).
        bias: (N).
        padded: whether zeros after the N numbers of a row will do.
    """
    rows = count_rows(x)
    return (
        not torch.compiler.is_exporting()
        and rows >= MIN_ROWS
        and rows * weight.numel() >= MIN_WORK
        and (padded or weight.shape[0] % STEP == 0)
        and INPUT.fits(weight, x, bias)
        and (x.dtype == torch.float32 or torch.is_autocast_enabled("cpu"))
        and is_faster("linear", product_dtype(x), rows * weight.numel())
    )


def training_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x wT + b; ask `supports_training_linear` before.

    Args:
        x: (..., K).
        weight: (N, K) float32.
        bias: (N) float32.

    Returns:
        (..., N), in what is multiplied.
    """
    return _differentiable(x.to(product_dtype(x)).contiguous(), weight, bias)


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], -(-weight.shape[0] // STEP) * STEP))


@operator("linear", _fake)
def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x wT + b, and zeros up to a width of whole sixteens. A bias is for such N alone."""
    sizes = FORWARD.sizes(weight, x, bias)
    out_features, in_features = sizes["N"], sizes["K"]
    y = _fake(x, weight, bias)
    kernel_of("linear_forward", x.dtype)(
        x, weight, bias, y, x.numel() // in_features, in_features, out_features, kernel_threads()
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
    sizes = BACKWARD.sizes(weight, x, grad_output)
    out_features, in_features = sizes["N"], sizes["K"]
    if sizes["P"] != -(-out_features // STEP) * STEP:
        raise ValueError(f"linear_backward: a gradient of N={out_features} is not {sizes['P']} wide")
    if len(needs_grad) != 3 or (needs_grad[2] and out_features % STEP):
        raise ValueError(f"linear_backward: three inputs, a bias where N={out_features} is a multiple of {STEP}")
    gradients = _fake_backward(grad_output, x, weight, needs_grad)
    if not x.numel():  # no rows to add up
        return gradients[0], gradients[1].zero_(), gradients[2].zero_()
    kernel_of("linear_backward", x.dtype)(
        grad_output.contiguous(), x, weight, *gradients, x.numel() // in_features, in_features, out_features,
        kernel_threads(),
    )  # fmt: skip
    return gradients


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)  # a weight that is frozen needs no input


def _gradients(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_grad = ctx.needs_input_grad
    if x is None:  # of its shape, and never read
        x = grad_output.new_empty((*grad_output.shape[:-1], weight.shape[1]))
    gradients = linear_backward(grad_output, x, weight, needs_grad)
    return tuple(gradient if needs else None for gradient, needs in zip(gradients, needs_grad, strict=True))


_differentiable = differentiable(linear_forward, _setup_context, _gradients)

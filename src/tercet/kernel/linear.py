"""A linear layer that learns, there and back, where the CPU multiplies bfloat16.

In mixed precision PyTorch narrows every weight, keeps that copy for the way back, multiplies, finds the weight's slopes
in bfloat16 and widens them, and adds up the bias's in a pass of its own. Here weights and their slopes are float32 and
nothing else: they are narrowed as they are laid out to be multiplied, and sums stay as exact as they were made.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.compiled import library, multiplies_bfloat16
from tercet.kernel.operators import differentiable, operator

WORTH = 1 << 20  # multiplications from which it is worth having the kernel compiled
FEW = 16  # rows from which weights are worth laying out
STEP = 16  # what a layer takes is a multiple of it, and what the kernel gives


def takes_linear(x: Tensor, weight: Tensor, *, padded: bool = False) -> bool:
    """Whether this product is one for the kernel: of a float32 weight, to be multiplied in bfloat16, on such a CPU.

    Args:
        x: (..., K).
        weight: (M, K).
        padded: whether zeros after the M numbers of a row will do.
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


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x wT + b; ask `takes_linear` before.

    Args:
        x: (..., K), to be multiplied in bfloat16.
        weight: (M, K) float32.
        bias: (M) float32.

    Returns:
        (..., M) bfloat16.
    """
    return _learning(x.to(torch.bfloat16).contiguous(), weight, bias)


def _place(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], -(-weight.shape[0] // STEP) * STEP))


@operator("linear", _place)
def linear_there(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x wT + b, and zeros up to a width of whole sixteens. x is bfloat16 without gaps, a bias is for such M alone."""
    y = _place(x, weight, bias)
    long, wide = weight.shape
    kernels = library()
    assert kernels is not None
    kernels.linear_there(
        x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr(), x.numel() // wide,
        wide, long, torch.get_num_threads(),
    )  # fmt: skip
    return y


def _places(slopes: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if wanted[0] else 0),
        weight.new_empty(weight.shape if wanted[1] else 0),
        weight.new_empty(len(weight) if wanted[2] else 0),
    )


@operator("linear_back", _places)
def linear_back(slopes: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """The slopes of x, weight and bias from those of what `linear_there` gave; nothing where they are not wanted."""
    slopes = slopes.contiguous()
    found = _places(slopes, x, weight, wanted)
    long, wide = weight.shape
    kernels = library()
    assert kernels is not None
    kernels.linear_back(
        slopes.data_ptr(), x.data_ptr(), weight.data_ptr(), *(place.data_ptr() or None for place in found),
        x.numel() // wide, wide, long, torch.get_num_threads(),
    )  # fmt: skip
    return found


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    found = linear_back(slopes, x, weight, wanted)
    return tuple(one if want else None for one, want in zip(found, wanted, strict=True))


_learning = differentiable(linear_there, _keep, _gradients)

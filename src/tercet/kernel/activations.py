"""What a feed-forward network bends its numbers by, in bfloat16 on a CPU, there and back."""

from typing import Any

import torch
from torch import Tensor

from tercet.kernel.compiled import has_kernels, library
from tercet.kernel.operators import differentiable, operator

WORTH = 1 << 18  # numbers from which it is worth having the kernel compiled
# As `activations.h` counts them; the ones that are smooth have a kernel.
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu", "relu_squared")


def takes_bending(x: Tensor) -> bool:
    """Whether these numbers are ones for the kernel."""
    return (
        not torch.compiler.is_exporting()
        and x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and x.is_contiguous()
        and x.numel() >= WORTH
        and has_kernels()
    )


def bend(x: Tensor, activation: str) -> Tensor:
    """gelu, gelu_tanh or silu of each number; ask `takes_bending` before.

    Args:
        x: of any shape, bfloat16; worked out in float32.
    """
    return _learning(x, ACTIVATIONS.index(activation))


def _place(x: Tensor, activation: int) -> Tensor:
    return torch.empty_like(x)


@operator("bend", _place)
def _there(x: Tensor, activation: int) -> Tensor:
    return _call(x, None, activation)


def _place_back(slopes: Tensor, x: Tensor, activation: int) -> Tensor:
    return torch.empty_like(x)


@operator("bend_back", _place_back)
def _back(slopes: Tensor, x: Tensor, activation: int) -> Tensor:
    return _call(x, slopes.to(x.dtype).contiguous(), activation)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.activation = inputs
    ctx.save_for_backward(x)


def _gradients(ctx: Any, slopes: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return _back(slopes, x, ctx.activation), None


_learning = differentiable(_there, _keep, _gradients)


def _call(x: Tensor, slopes: Tensor | None, activation: int) -> Tensor:
    kernels = library()
    assert kernels is not None
    y = torch.empty_like(x)
    kernels.bend(
        x.data_ptr(), None if slopes is None else slopes.data_ptr(), y.data_ptr(), x.numel(), activation,
        torch.get_num_threads(),
    )  # fmt: skip
    return y

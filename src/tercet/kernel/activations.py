"""What a feed-forward network bends its numbers by, in bfloat16 on a CPU, there and back."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tercet.kernel.compiled import library, takes

WORTH = 1 << 20  # numbers from which it is worth having the kernel compiled
# As `activations.h` counts them; the ones that are smooth have a kernel.
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu", "relu_squared")


def takes_bending(x: Tensor) -> bool:
    """Whether these numbers are ones for the kernel."""
    return x.dtype == torch.bfloat16 and x.is_contiguous() and takes(x, WORTH)


def bend(x: Tensor, activation: str) -> Tensor:
    """gelu, gelu_tanh or silu of each number; ask `takes_bending` before.

    Args:
        x: of any shape, bfloat16; worked out in float32.
    """
    return _Bend.apply(x, activation)


class _Bend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.activation = activation
        return _call(x, None, activation)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - by the decorator
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return _call(x, gradients[0].to(x.dtype).contiguous(), ctx.activation), None


def _call(x: Tensor, slopes: Tensor | None, activation: str) -> Tensor:
    kernels = library()
    assert kernels is not None
    y = torch.empty_like(x)
    kernels.bend(
        x.data_ptr(), None if slopes is None else slopes.data_ptr(), y.data_ptr(), x.numel(),
        ACTIVATIONS.index(activation), torch.get_num_threads(),
    )  # fmt: skip
    return y

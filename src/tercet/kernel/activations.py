"""Activations of the feed-forward network on a CPU, forward and backward."""

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.build import kernel_of, kernels
from tercet.kernel.contract import Contract
from tercet.kernel.operators import differentiable, operator
from tercet.kernel.threads import kernel_threads
from tercet.kernel.tuning import is_faster

MIN_WORK = 1 << 18  # minimum number of elements for which compiling the kernel pays
NUMBERS = Contract("activate", x="float32|bfloat16[*]")
GRADIENTS = Contract("activate_backward", x="float32|bfloat16[*]", grad_output="bfloat16|float32[*] strided")


@cache
def activation_numbers() -> dict[str, int]:
    """Return the number of each activation in `activations.h` by name, including "none"."""
    names = ctypes.c_char_p.in_dll(kernels(), "ACTIVATIONS").value
    assert names is not None
    return {name: number for number, name in enumerate(names.decode().split())}


def supports_activation(x: Tensor) -> bool:
    """Return whether the kernel supports this tensor and is expected to be faster."""
    return (
        not torch.compiler.is_exporting()
        and x.numel() >= MIN_WORK
        and NUMBERS.fits(x)
        and is_faster("activate", x.dtype, x.numel())
    )


def activate(x: Tensor, name: str) -> Tensor:
    """Apply an activation elementwise. Requires `supports_activation`.

    Args:
        x: Tensor of any shape. The activation is computed in float32.
        name: Name of the activation, one of `activation_numbers`.
    """
    return _differentiable(x, name)


def _fake(x: Tensor, name: str) -> Tensor:
    return torch.empty_like(x)


@operator("activate", _fake)
def _forward(x: Tensor, name: str) -> Tensor:
    NUMBERS.sizes(x)
    return _call(x, None, name)


def _fake_backward(grad_output: Tensor, x: Tensor, name: str) -> Tensor:
    return torch.empty_like(x)


@operator("activate_backward", _fake_backward)
def _backward(grad_output: Tensor, x: Tensor, name: str) -> Tensor:
    GRADIENTS.sizes(x, grad_output)
    return _call(x, grad_output.to(x.dtype).contiguous(), name)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.name = inputs
    ctx.save_for_backward(x)


def _gradients(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return _backward(grad_output, x, ctx.name), None


_differentiable = differentiable(_forward, _setup_context, _gradients)


def _call(x: Tensor, grad_output: Tensor | None, name: str) -> Tensor:
    numbers = activation_numbers()
    if name not in numbers:
        raise ValueError(f"unknown activation: {name!r}; choose from {', '.join(numbers)}")
    y = torch.empty_like(x)
    kernel_of("activate", x.dtype)(x, grad_output, y, x.numel(), numbers[name], kernel_threads())
    return y

"""AdamW steps and gradient norms of all parameters in one call on a CPU.

PyTorch's fused kernel updates one parameter after the other, which takes most of the time of an optimizer step of a
small model. Its gradient clipping reads and writes all gradients once more. Here the step applies the clipping factor.
"""

import ctypes
import struct
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from tercet.kernel.build import kernels, library
from tercet.kernel.contract import describe, is_plain, is_transforming
from tercet.kernel.threads import kernel_threads

MIN_WORK = 1 << 17  # minimum number of elements for which compiling the kernels pays
SCALAR_SHAPE = torch.Size(())


def supports_gradients(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None] | None = None, *, min_elements: int | None = None
) -> bool:
    """Return whether the kernels support these parameters and gradients. Every parameter must have a gradient.

    Args:
        parameters: Parameters of the model.
        gradients: Gradient of each parameter (default: its `grad`).
        min_elements: Minimum total number of elements (default: `MIN_WORK`).
    """
    numbers = 0
    gradients = [p.grad for p in parameters] if gradients is None else gradients
    for p, gradient in zip(parameters, gradients, strict=True):
        if gradient is None or not (_is_possible(p, p.shape) and _is_possible(gradient, p.shape)):
            return False
        numbers += p.numel()
    return (
        numbers >= (MIN_WORK if min_elements is None else min_elements)
        and not torch.compiler.is_compiling()
        and not is_transforming()
        and library() is not None
    )


def gradient_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all tensors together as a float32 scalar. Requires `supports_gradients`."""
    _check("gradient_norm", tensors, [x.shape for x in tensors])
    norm = ctypes.c_double()
    kernels().gradient_norm(_addresses(tensors), _counts(tensors), len(tensors), ctypes.byref(norm), kernel_threads())
    return torch.tensor(norm.value, dtype=torch.float32)


@torch.no_grad()
def adam_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    settings: Sequence[tuple[float, float, float, float, float]],
    scale: float = 1.0,
) -> None:
    """Apply a step of AdamW in place. Requires `supports_gradients`.

    Args:
        parameters, gradients: Parameters and their gradients.
        means, squares: Moving averages of the gradient and of its square, for each parameter.
        steps: Number of previous steps of each parameter, as a float32 scalar, which is incremented.
        settings: Learning rate, beta1, beta2, eps and weight decay of each parameter.
        scale: Factor by which gradients are multiplied when they are read, for example to clip them.

    Raises:
        ValueError: If the sequences differ in length or shapes, if a tensor is not contiguous float32 on a CPU, or if a
            tensor other than a gradient overlaps with another one in memory.
    """
    shapes = [p.shape for p in parameters]
    for tensors in (parameters, gradients, means, squares):
        _check("adam", tensors, shapes)
    _check("adam", steps, [SCALAR_SHAPE] * len(parameters))
    if len(settings) != len(parameters):
        raise ValueError(
            f"adam requires one tuple of settings per parameter: {len(settings)} for {len(parameters)} parameters"
        )
    tensors = _addresses([*parameters, *gradients, *means, *squares, *steps])
    floats = struct.pack(f"{5 * len(settings)}f", *chain.from_iterable(settings))
    overlaps = ctypes.c_int64()
    kernels().adam(
        tensors, _counts(parameters), len(parameters), floats, scale, ctypes.byref(overlaps), kernel_threads()
    )
    if overlaps.value:
        raise ValueError("adam: parameters and moments overlap in memory, with each other or with gradients")
    torch.autograd.graph.increment_version(parameters)


def _check(kernel: str, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> None:
    if len(tensors) != len(shapes):
        raise ValueError(
            f"{kernel} requires one tensor of each kind per parameter: {len(tensors)} for {len(shapes)} parameters"
        )
    for x, shape in zip(tensors, shapes, strict=True):
        if not _is_possible(x, shape):
            raise ValueError(f"{kernel} requires contiguous float32 of shape {list(shape)} on a CPU; got {describe(x)}")


def _is_possible(x: Tensor, shape: torch.Size) -> bool:
    return x.shape == shape and x.is_contiguous() and is_plain(x, torch.float32)


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    addresses = [x.data_ptr() for x in tensors]
    if 0 in addresses and any(x.numel() and not x.data_ptr() for x in tensors):
        raise ValueError("a tensor has elements but no memory; kernels require ordinary tensors")
    return addresses


def _counts(tensors: Sequence[Tensor]) -> list[int]:
    return [x.numel() for x in tensors]

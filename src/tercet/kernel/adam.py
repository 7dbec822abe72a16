"""A step of Adam, and the norm of a gradient, over all parameters in one call, on a CPU. PyTorch's fused kernel takes
one parameter after the other, which small models wait for, and a clipped gradient is read and written once more before.
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

MIN_WORK = 1 << 17  # numbers from which it is worth having the kernels compiled
SCALAR_SHAPE = torch.Size(())


def supports_gradients(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None] | None = None, *, min_elements: int | None = None
) -> bool:
    """Whether all these, and their gradients, by default their own, are ones for the kernels, and so many numbers
    that it is worth it."""
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
    """The Euclidean norm of all numbers of all tensors, (), float32; ask `supports_gradients` before."""
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
    """A step of AdamW in place; ask `supports_gradients` before.

    Args:
        means, squares: both moments.
        steps: () each, float32: the steps so far; this one is added.
        settings: of each parameter its learning rate, the moments' decays beta1 and beta2, eps and weight decay.
        scale: what the gradients are multiplied by as they are read.

    Raises:
        ValueError: where they are not as many of each, float32 without gaps, of a parameter's shape each, or overlap.
    """
    shapes = [p.shape for p in parameters]
    for tensors in (parameters, gradients, means, squares):
        _check("adam", tensors, shapes)
    _check("adam", steps, [SCALAR_SHAPE] * len(parameters))
    if len(settings) != len(parameters):
        raise ValueError(f"adam: {len(parameters)} parameters need as many settings; got {len(settings)}")
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
        raise ValueError(f"{kernel}: {len(shapes)} parameters need as many of all else; got {len(tensors)}")
    for x, shape in zip(tensors, shapes, strict=True):
        if not _is_possible(x, shape):
            raise ValueError(
                f"{kernel} takes float32 without gaps on a CPU, here of the shape {list(shape)}; got {describe(x)}"
            )


def _is_possible(x: Tensor, shape: torch.Size) -> bool:
    return x.shape == shape and x.is_contiguous() and is_plain(x, torch.float32)


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    addresses = [x.data_ptr() for x in tensors]
    if 0 in addresses and any(x.numel() and not x.data_ptr() for x in tensors):
        raise ValueError("a tensor of these has no numbers in memory")
    return addresses


def _counts(tensors: Sequence[Tensor]) -> list[int]:
    return [x.numel() for x in tensors]

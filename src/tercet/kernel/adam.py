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

WORTH = 1 << 17  # numbers from which it is worth having the kernels compiled


def supports_gradients(parameters: Sequence[Tensor]) -> bool:
    """Whether all these, and their gradients, are ones for the kernels."""
    numbers = 0
    for p in parameters:
        gradient = p.grad  # autograd sees to it that type and device are its parameter's
        if gradient is None or p.dtype != torch.float32 or not p.is_cpu or type(gradient) is not Tensor:
            return False
        if not (p.is_contiguous() and gradient.is_contiguous()):
            return False
        numbers += p.numel()
    return numbers >= WORTH and library() is not None


def gradient_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers of all tensors, (), float32; ask `supports_gradients` before."""
    norm = ctypes.c_double()
    kernels().gradient_norm(
        _addresses(tensors), _counts(tensors), len(tensors), ctypes.byref(norm), torch.get_num_threads()
    )
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
    """
    tensors = _addresses([*parameters, *gradients, *means, *squares, *steps])
    floats = struct.pack(f"{5 * len(settings)}f", *chain.from_iterable(settings))
    kernels().adam(tensors, _counts(parameters), len(parameters), floats, scale, torch.get_num_threads())
    torch.autograd.graph.increment_version(parameters)


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [x.data_ptr() for x in tensors]


def _counts(tensors: Sequence[Tensor]) -> list[int]:
    return [x.numel() for x in tensors]

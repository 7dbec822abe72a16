"""A step of Adam, and the norm of a gradient, over all parameters in one call, on a CPU. PyTorch's fused kernel takes
one parameter after the other, which small models wait for, and a clipped gradient is read and written once more before.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from tercet.kernel.compiled import library

WORTH = 1 << 17  # numbers from which it is worth having the kernels compiled


def takes_numbers(*lists: Sequence[Tensor]) -> bool:
    """Whether all these tensors are ones for the kernels."""
    return (
        all(
            type(x) in (Tensor, torch.nn.Parameter)  # and no DTensor
            and x.dtype == torch.float32
            and x.device.type == "cpu"
            and x.is_contiguous()
            for tensors in lists
            for x in tensors
        )
        and sum(x.numel() for x in lists[0]) >= WORTH
        and library() is not None
    )


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers of all tensors, (), float32; ask `takes_numbers` before."""
    kernels = library()
    assert kernels is not None
    found = ctypes.c_double()
    kernels.norm(_addresses(tensors), _counts(tensors), len(tensors), ctypes.byref(found), torch.get_num_threads())
    return torch.tensor(found.value, dtype=torch.float32)


@torch.no_grad()
def adam_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    scale: float = 1.0,
) -> None:
    """A step of AdamW in place; ask `takes_numbers` before.

    Args:
        means, squares: both moments.
        steps: () each, float32: the steps so far; this one is added.
        scale: what the gradients are multiplied by as they are read.
    """
    kernels = library()
    assert kernels is not None
    sizes = (ctypes.c_float * 6)(lr, *betas, eps, weight_decay, scale)
    tensors = _addresses([*parameters, *gradients, *means, *squares, *steps])
    kernels.adam(tensors, _counts(parameters), len(parameters), sizes, torch.get_num_threads())
    torch.autograd.graph.increment_version(parameters)


def _addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(tensors))(*[x.data_ptr() for x in tensors])


def _counts(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(tensors))(*[x.numel() for x in tensors])

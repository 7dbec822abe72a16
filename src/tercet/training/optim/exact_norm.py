"""The norm of a gradient, to the last bit the same whether ranks hold all of it or a piece of each tensor.

Sums of pairs are rounded the same wherever they are worked out, so that all is added up by halves: the squares of each
row, which no piece cuts through, and then those sums. Squares of float32 are exact in float64.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from tercet.training.optim.local_parts import is_sharded, local_parts


@torch.no_grad()
def exact_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers of all tensors, (), float32; of those of all ranks, where each has a piece."""
    rows = torch.cat([_row_sums(x) for x in tensors])
    if is_sharded(tensors[0]):
        dist.all_reduce(rows, group=cast(Any, tensors[0]).device_mesh.get_group())
    return _sum_by_halves(rows).sqrt().float()


def _row_sums(x: Tensor) -> Tensor:
    """(rows,): the squares of each row, float64, of a vector those of its numbers; 0 for the rows of other ranks."""
    (part,) = local_parts([x])
    sums = _sum_by_halves(part.double().square_().view(len(part), part[:1].numel())) if part.numel() else part.double()
    if not is_sharded(x):
        return sums
    mesh = cast(Any, x).device_mesh
    rows = torch.zeros(len(x), dtype=torch.float64, device=part.device)
    first = mesh.get_local_rank() * -(-len(x) // mesh.size())  # pieces as `torch.chunk` cuts them
    rows[first : first + len(part)] = sums.flatten()
    return rows


def _sum_by_halves(x: Tensor) -> Tensor:
    """(..., n) to (...)."""
    while (n := x.shape[-1]) > 1:
        half = (n + 1) // 2
        x[..., : n - half] += x[..., half:]
        x = x[..., :half]
    return x[..., 0]

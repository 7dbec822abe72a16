"""A gradient norm that is bitwise identical for whole and for sharded tensors.

All numbers are added in an order that does not depend on the sharding: first the squares within each row, which shards
do not split, and then the sums of all rows. Each sum is computed by repeatedly adding the second half of the numbers to
the first. Squares of float32 numbers are exact in float64.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from tercet.training.optim.local_parts import is_sharded, local_parts


@torch.no_grad()
def exact_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all tensors together, over all ranks if they are sharded: shape (), float32.

    Args:
        tensors: At least one tensor; either all are whole, or all are sharded by rows over the same mesh.
    """
    rows = torch.cat([_row_sums(x) for x in tensors])
    if is_sharded(tensors[0]):
        dist.all_reduce(rows, group=cast(Any, tensors[0]).device_mesh.get_group())
    return _sum_by_halves(rows).sqrt().float()


def _row_sums(x: Tensor) -> Tensor:
    """Return the sum of squares of each row, (rows,) in float64. The rows of a vector are its elements.

    If the tensor is sharded, the sums of rows on other ranks are 0.
    """
    (part,) = local_parts([x])
    sums = _sum_by_halves(part.double().square_().view(len(part), part[:1].numel())) if part.numel() else part.double()
    if not is_sharded(x):
        return sums
    mesh = cast(Any, x).device_mesh
    rows = torch.zeros(len(x), dtype=torch.float64, device=part.device)
    first = mesh.get_local_rank() * -(-len(x) // mesh.size())  # shards as `torch.chunk` cuts them
    rows[first : first + len(part)] = sums.flatten()
    return rows


def _sum_by_halves(x: Tensor) -> Tensor:
    """Sum over the last dimension: (..., n) to (...)."""
    while (n := x.shape[-1]) > 1:
        half = (n + 1) // 2
        x[..., : n - half] += x[..., half:]
        x = x[..., :half]
    return x[..., 0]

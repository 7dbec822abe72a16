"""Program of each rank in `test_reduction.py`: pairs of the results of several ranks and of one process."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tercet.training.distributed.reduction import Tree, all_reduce_in_order, sum_in_order
from tercet.training.optim.exact_norm import exact_norm

SHAPES = [(7, 3), (5,), (1, 2), (64, 33)]

if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    rng = torch.Generator().manual_seed(0)
    micro_batches = [[torch.randn(shape, generator=rng) for shape in SHAPES] for _ in range(3 * world)]
    whole_tree, rank_tree = Tree(3 * world), Tree(3)
    expected = [whole_tree.add([x.clone() for x in tensors]) for tensors in micro_batches][-1]
    found = [rank_tree.add([x.clone() for x in tensors]) for tensors in micro_batches[3 * rank : 3 * rank + 3]][-1]
    assert expected is not None
    assert found is not None
    results = {"loss": (sum_in_order([t[1] for t in micro_batches[3 * rank : 3 * rank + 3]], world=world), expected[1])}
    all_reduce_in_order(found)
    results |= {f"gradient {n}": pair for n, pair in enumerate(zip(found, expected, strict=True))}
    mesh = init_device_mesh("cpu", (world,))
    pieces = [distribute_tensor(x, mesh, [Shard(0)]) for x in expected]
    results["norm"] = (exact_norm(pieces), exact_norm(expected))
    torch.save(results, Path(sys.argv[1]) / f"{rank}.pt")
    dist.destroy_process_group()

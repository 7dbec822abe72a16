"""Program of each rank in `test_reshard_after_forward.py`.

It trains the folder's recipe and records the bytes that the passes of a step send to other ranks, as in a ring.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tercet.training import load_recipe, train
from tercet.training.loop.module import TrainingModule

if __name__ == "__main__":
    folder, sent_bytes, steps = Path(sys.argv[1]), 0, list[int]()
    gather_name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    gather, exchange = getattr(dist, gather_name), dist.all_to_all_single
    work_out = TrainingModule._pass  # type: ignore[reportPrivateUsage]

    def counted_gather(output: torch.Tensor, tensor: torch.Tensor, **options: Any) -> Any:
        global sent_bytes
        sent_bytes += tensor.nbytes * (dist.get_world_size() - 1)
        return gather(output, tensor, **options)

    def counted_exchange(output: torch.Tensor, tensor: torch.Tensor, **options: Any) -> Any:
        global sent_bytes
        sent_bytes += tensor.nbytes * (dist.get_world_size() - 1) // dist.get_world_size()
        return exchange(output, tensor, **options)

    def counted_pass(module: TrainingModule, batches: list[Any], step: int) -> None:
        before = sent_bytes
        work_out(module, batches, step)
        steps.append(sent_bytes - before)

    setattr(dist, gather_name, counted_gather)
    dist.all_to_all_single = counted_exchange
    TrainingModule._pass = counted_pass  # type: ignore[reportPrivateUsage]
    train(load_recipe(str(folder / "recipe.yaml")), folder / "run", quiet=True)
    torch.save({"sent": steps}, folder / f"{os.environ['RANK']}.pt")

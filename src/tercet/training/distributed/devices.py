"""The devices that a run may use, and which of its processes this is."""

import gc
import socket
import time
from pathlib import Path

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only

from tercet.config import UserError
from tercet.kernel import warm_up
from tercet.training.recipe.specs import TrainingSpec


def accelerator(spec: TrainingSpec) -> str:
    """cpu, cuda or mps.

    Raises:
        UserError: where this machine has fewer of them than are asked for.
    """
    available = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": spec.devices}
    choices = {"auto": list(available), "gpu": ["cuda"]}.get(spec.accelerator, [spec.accelerator])
    name = next((choice for choice in choices if available[choice]), choices[0])
    if available[name] < spec.devices:
        raise UserError(
            f"training.devices={spec.devices} on {name}, and this machine has {available[name]}; "
            f"set training.devices lower, or training.accelerator=cpu"
        )
    return name


def check_exact(spec: TrainingSpec) -> None:
    """Raises:
    UserError: where a step of a piece of the weights would not be that of the whole to the last bit.
    """
    if spec.exact and spec.is_sharded and accelerator(spec) == "cpu" and not warm_up():
        raise UserError(
            "training.exact with fsdp needs the compiled kernels on a CPU, and there is no compiler; set ddp"
        )


def rank(spec: TrainingSpec) -> int:
    """Which of a run's processes this is, also before they have met; 0 where there is one."""
    return (getattr(rank_zero_only, "rank", None) or 0) if spec.world_size > 1 else 0


def describe_rank(spec: TrainingSpec) -> str:
    """This process and where it runs."""
    return f"rank {rank(spec)} of {spec.world_size} on {socket.gethostname()}"


def wait_for_file(path: Path, seconds: float = 1800.0) -> None:
    """Until the first process has settled what holds for all of them, in the folder that they share."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise UserError(f"the first process has not written {path}; all nodes must share the folder of --out")
        time.sleep(0.1)


def free_unused_memory() -> None:
    """Give back what nothing holds any more."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()

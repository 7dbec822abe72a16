"""Devices of a run, and the rank of this process."""

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
    """Return the kind of device of a run: cpu, cuda or mps.

    Raises:
        UserError: If this machine has fewer devices than requested.
    """
    available = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": spec.devices}
    choices = {"auto": list(available), "gpu": ["cuda"]}.get(spec.accelerator, [spec.accelerator])
    name = next((choice for choice in choices if available[choice]), choices[0])
    if available[name] < spec.devices:
        raise UserError(
            f"training.devices={spec.devices} on {name}, but this machine has {available[name]}; "
            f"reduce training.devices, or set training.accelerator=cpu"
        )
    return name


def check_exact(spec: TrainingSpec) -> None:
    """Check that steps on sharded weights are bitwise identical to those on whole weights.

    Raises:
        UserError: If `exact` is requested with fsdp on a CPU and there are no compiled kernels.
    """
    if spec.exact and spec.is_sharded and accelerator(spec) == "cpu" and not warm_up():
        raise UserError(
            "training.exact with fsdp on a CPU needs the compiled kernels, and there is no compiler; "
            "set training.strategy=ddp"
        )


def rank(spec: TrainingSpec) -> int:
    """Return the rank of this process, also before the process group exists; 0 if there is only one process."""
    return (getattr(rank_zero_only, "rank", None) or 0) if spec.world_size > 1 else 0


def describe_rank(spec: TrainingSpec) -> str:
    """Return rank, world size and host of this process, as text."""
    return f"rank {rank(spec)} of {spec.world_size} on {socket.gethostname()}"


def wait_for_file(path: Path, seconds: float = 1800.0) -> None:
    """Wait until rank 0 has written a file into the shared run folder.

    Raises:
        UserError: If the file does not appear in time.
    """
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise UserError(f"rank 0 has not written {path}; all nodes must share the folder of --out")
        time.sleep(0.1)


def free_unused_memory() -> None:
    """Collect garbage, and return cached device memory to the system."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()

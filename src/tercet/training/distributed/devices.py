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
    """Return the kind of device of a run: "cpu", "cuda" or "mps".

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
    """Check that this machine can compute exact steps with the strategy of a run.

    On a CPU, only the compiled kernels compute bitwise identical steps on sharded and whole weights. MPS lacks float64,
    in which the norm of the gradients is computed.

    Raises:
        UserError: If `exact` is requested on MPS, or with fsdp on a CPU and there are no compiled kernels.
    """
    if spec.exact and accelerator(spec) == "mps":
        raise UserError("training.exact is not supported on mps; set training.accelerator=cpu")
    if spec.exact and spec.is_sharded and accelerator(spec) == "cpu" and not warm_up():
        raise UserError(
            "training.exact with fsdp on a CPU needs the compiled kernels, which are not available (`tercet doctor` "
            "shows the reason); set training.strategy=ddp"
        )


def rank(spec: TrainingSpec) -> int:
    """Return the rank of this process, even before the process group exists; 0 if the run has one process."""
    return (getattr(rank_zero_only, "rank", None) or 0) if spec.world_size > 1 else 0


def describe_rank(spec: TrainingSpec) -> str:
    """Return the rank and host of this process and the number of ranks, as text for messages."""
    return f"rank {rank(spec)} of {spec.world_size} on {socket.gethostname()}"


def wait_for_file(path: Path, seconds: float = 1800.0) -> None:
    """Wait until rank 0 has written a file into the run folder, which all nodes share.

    Args:
        path: Path of the file.
        seconds: Maximum time to wait.

    Raises:
        UserError: If the file does not appear in this time.
    """
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise UserError(f"rank 0 has not written {path}; all nodes must share the folder of --out")
        time.sleep(0.1)


def free_unused_memory() -> None:
    """Collect garbage, and release the device memory that PyTorch keeps in its cache."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()

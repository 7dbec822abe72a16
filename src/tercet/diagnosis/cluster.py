"""Facts about this machine for runs on several machines: backends, network interfaces, launcher and GPUs."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tercet.config import UserError
from tercet.messages import show

MAX_RANKS = 1 << 20  # processes of a run
MAX_SLURM_ID = (1 << 32) - 1  # largest id of a job or step
VARIABLES = (
    "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NNODES",
    "SLURM_NODEID", "SLURM_NODELIST", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST",
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GPUDevice:
    """A GPU of this machine.

    Attributes:
        name: Name of the device.
        memory_bytes: Total memory in bytes, or None if unknown.
        capability: Compute capability such as 9.0, or None if it is not a CUDA device.
        bf16: If True, the device supports bfloat16.
    """

    name: str
    memory_bytes: int | None
    capability: str | None
    bf16: bool


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """The rank of this process in a run, from its environment variables.

    Attributes:
        by: torchrun or SLURM; `environment` if the variables of torchrun are set without torchrun.
        world_size: Number of ranks.
        rank: Rank of this process.
        local_rank: Rank on this machine.
        master: Address of rank 0 as HOST:PORT, or None if unknown.
    """

    by: str
    world_size: int
    rank: int
    local_rank: int
    master: str | None


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """Facts about this machine for a run on several machines.

    Attributes:
        host: Host name.
        backends: Available backends of torch.distributed.
        nccl: Version of NCCL, or None if PyTorch was built without it.
        interfaces: Names of the network interfaces without the loopback interface.
        launch: Rank of this process, or None if it was not started by a launcher.
        variables: Environment variables of torchrun, SLURM, NCCL, gloo and CUDA that are set.
        gpus: GPUs of this machine.
        gpu_driver: Version of the NVIDIA driver, or None if unknown.
    """

    host: str
    backends: list[str]
    nccl: str | None
    interfaces: list[str]
    launch: RankPlace | None
    variables: dict[str, str]
    gpus: list[GPUDevice]
    gpu_driver: str | None


def find_cluster_facts() -> ClusterFacts:
    """Return the facts about this machine.

    Raises:
        UserError: If the variables of a launcher are invalid; see `find_rank_place`.
    """
    return ClusterFacts(
        host=socket.gethostname(),
        backends=_backends(),
        nccl=_nccl_version(),
        interfaces=_interfaces(),
        launch=find_rank_place(os.environ),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        gpus=_gpus(),
        gpu_driver=_driver_version(),
    )


def find_rank_place(environment: Mapping[str, str]) -> RankPlace | None:
    """Return the rank of this process and its launcher, or None if it was not started by a launcher.

    Args:
        environment: Environment variables.

    Raises:
        UserError: If a variable of the launcher is not a number, is out of range, or is missing while others are set.
    """
    if "WORLD_SIZE" in environment or "RANK" in environment:
        by = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "environment"
        names = ("WORLD_SIZE", "RANK", "LOCAL_RANK")
    elif "SLURM_PROCID" in environment and "SLURM_STEP_NUM_TASKS" in environment:
        by, names = "SLURM", ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID")
    else:
        return None
    world = _number(environment, names[0], 1, MAX_RANKS)
    rank = _number(environment, names[1], 0, world - 1)
    local = _number(environment, names[2], 0, world - 1) if names[2] in environment else 0
    return RankPlace(by=by, world_size=world, rank=rank, local_rank=local, master=_find_master(environment, by))


def _find_master(environment: Mapping[str, str], by: str) -> str | None:
    """Return HOST:PORT of rank 0, chosen as in training: from the variables, or from the ids of a SLURM step."""
    host, port = environment.get("MASTER_ADDR"), None
    if "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT", 1, 65_535)
    if by == "SLURM":
        from tercet.training.distributed.cluster import slurm_step_address, slurm_step_port

        for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"):
            _number(environment, name, 0, MAX_SLURM_ID)
        host = host or (slurm_step_address(environment) if "SLURM_STEP_NODELIST" in environment else None)
        port = port or slurm_step_port(environment)
    return None if host is None or port is None else f"{host}:{port}"


def _interfaces() -> list[str]:
    """Return the names that NCCL_SOCKET_IFNAME accepts, without the loopback interface; empty if unknown."""
    with suppress(OSError, AttributeError):
        return [name for _, name in socket.if_nameindex() if name not in ("lo", "lo0")]
    return []


def _number(environment: Mapping[str, str], name: str, minimum: int, maximum: int) -> int:
    text = environment.get(name)
    if text is None:
        raise UserError(
            f"{name} is not set, although other variables of its launcher are; start the process with the launcher"
        )
    if not text.isascii() or not text.isdigit() or not minimum <= int(text[:20]) <= maximum:
        raise UserError(
            f"{name}={show(text)} must be a whole number from {minimum} to {maximum:,}; "
            "unset it, or start with torchrun"
        )
    return int(text)


def _backends() -> list[str]:
    from torch import distributed

    if not distributed.is_available():
        return []
    backends = {
        "gloo": distributed.is_gloo_available(), "nccl": distributed.is_nccl_available(),
        "mpi": distributed.is_mpi_available(),
    }  # fmt: skip
    return [name for name, is_available in backends.items() if is_available]


def _nccl_version() -> str | None:
    from torch import distributed

    if not distributed.is_available() or not distributed.is_nccl_available():
        return None

    from torch.cuda import nccl

    with suppress(RuntimeError, AttributeError):
        return ".".join(map(str, nccl.version()))
    return None


def _gpus() -> list[GPUDevice]:
    import torch

    gpus: list[GPUDevice] = []
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        gpus.append(
            GPUDevice(
                name=facts.name,
                memory_bytes=facts.total_memory,
                capability=f"{facts.major}.{facts.minor}",
                bf16=(facts.major, facts.minor) >= (8, 0),
            )
        )
    if not gpus and torch.backends.mps.is_available():
        return [GPUDevice(name="mps", memory_bytes=None, capability=None, bf16=False)]
    return gpus


def _driver_version() -> str | None:
    """Return the version of the NVIDIA driver, or None if unknown; it is only known on Linux.

    There, a file contains a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...`.
    """
    with suppress(OSError, StopIteration):
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace").splitlines()[:1]
        return next(word for word in " ".join(line).split() if word[:1].isdigit() and word.count(".") >= 1)
    return None

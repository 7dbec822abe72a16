"""What a run on several machines needs of this one: how PyTorch's processes talk, over which interfaces, who started
them, and which GPUs there are."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tercet.config import UserError
from tercet.messages import show

MAX_RANKS = 1 << 20  # processes of a run, and ranks
MAX_SLURM_ID = (1 << 32) - 1  # the largest number of a job, or of a step
VARIABLES = (
    "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NNODES",
    "SLURM_NODEID", "SLURM_NODELIST", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST",
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GPUDevice:
    """Attributes:
    capability: of compute, such as 9.0; None where it is no CUDA device.
    bf16: whether it multiplies in bfloat16.
    """

    name: str
    memory_bytes: int | None
    capability: str | None
    bf16: bool


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """The place of this process among those of a run, as its environment says.

    Attributes:
        by: torchrun or SLURM; environment where the variables are torchrun's and torchrun itself is not there.
        master: host and port at which rank 0 listens; None where nothing says so.
    """

    by: str
    world_size: int
    rank: int
    local_rank: int
    master: str | None


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """Attributes:
    backends: of torch.distributed that this PyTorch has.
    nccl: its version.
    interfaces: Names of the network interfaces, without the loopback's.
    launch: None where this process is started by itself.
    variables: those that are set, of torchrun, SLURM, NCCL, gloo and CUDA.
    gpus: and the version of their driver.
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
    """Raises as `find_rank_place` does."""
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
    """Who started this process as one of several; None where nobody did.

    Raises:
        UserError: where a number is none, or is out of its range, or the other half of the variables is missing.
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
    """Where rank 0 listens, in training as well: as the variables say, or as follows from a SLURM job's step."""
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
    """The names that NCCL_SOCKET_IFNAME takes, without the loopback's; empty if the system does not name them."""
    with suppress(OSError, AttributeError):
        return [name for _, name in socket.if_nameindex() if name not in ("lo", "lo0")]
    return []


def _number(environment: Mapping[str, str], name: str, minimum: int, maximum: int) -> int:
    text = environment.get(name)
    if text is None:
        raise UserError(f"{name} is not set, which belongs to the other variables of its launcher; start it by that")
    if not text.isascii() or not text.isdigit() or not minimum <= int(text[:20]) <= maximum:
        raise UserError(
            f"{name}={show(text)} must be a whole number from {minimum} to {maximum:,}; unset it, or start by torchrun"
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
    """NVIDIA's, which Linux has in a file: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...`."""
    with suppress(OSError, StopIteration):
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace").splitlines()[:1]
        return next(word for word in " ".join(line).split() if word[:1].isdigit() and word.count(".") >= 1)
    return None

"""What a run on several machines needs of this one: how PyTorch's processes talk, over which addresses, who started
them, which GPUs there are, and the clocks."""

import ipaddress
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tercet.config import UserError
from tercet.messages import show

SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
MOST = 1 << 20  # processes of a run, and ranks
SLURM_IDS = (1 << 32) - 1  # the largest number of a job, or of a step
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
    interfaces: network addresses other than this machine's own, by the name of the interface.
    launch: None where this process is started by itself.
    variables: those that are set, of torchrun, SLURM, NCCL, gloo and CUDA.
    gpus: and the version of their driver.
    clock: Python's clock that only goes on, with its resolution in seconds; and the time now.
    """

    host: str
    backends: list[str]
    nccl: str | None
    interfaces: dict[str, list[str]]
    launch: RankPlace | None
    variables: dict[str, str]
    gpus: list[GPUDevice]
    gpu_driver: str | None
    clock: str
    clock_resolution: float
    time: str


def find_cluster_facts() -> ClusterFacts:
    """Raises as `find_rank_place` does."""
    clock = time.get_clock_info("monotonic")
    return ClusterFacts(
        host=socket.gethostname(),
        backends=_backends(),
        nccl=_nccl_version(),
        interfaces=_group(find_addresses()),
        launch=find_rank_place(os.environ),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        gpus=_gpus(),
        gpu_driver=_driver_version(),
        clock=clock.implementation,
        clock_resolution=clock.resolution,
        time=datetime.now(UTC).isoformat(timespec="milliseconds"),
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
    world = _number(environment, names[0], 1, MOST)
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
            _number(environment, name, 0, SLURM_IDS)
        host = host or (slurm_step_address(environment) if "SLURM_STEP_NODELIST" in environment else None)
        port = port or slurm_step_port(environment)
    return None if host is None or port is None else f"{host}:{port}"


def find_addresses() -> list[tuple[str, str]]:
    """(interface, address) of this machine, IPv4 first, without those that only it can reach."""
    addresses = [*_ipv4(), *_ipv6()]
    if not addresses and not sys.platform.startswith("linux"):  # elsewhere the names of interfaces are not told
        with suppress(OSError):
            found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
            addresses = [("?", str(address[0]).partition("%")[0]) for *_, address in found]
    outer: list[tuple[str, str]] = []
    for name, address in addresses:
        ip = ipaddress.ip_address(address)
        if not ip.is_loopback and not ip.is_link_local and (name, address) not in outer:
            outer.append((name, address))
    return outer


def _ipv4() -> Iterator[tuple[str, str]]:
    if not sys.platform.startswith("linux"):
        return
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                yield name, socket.inet_ntoa(answer[20:24])


def _ipv6() -> Iterator[tuple[str, str]]:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            fields = line.split()
            yield fields[5], str(ipaddress.IPv6Address(bytes.fromhex(fields[0])))


def _group(addresses: list[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, address in addresses:
        groups.setdefault(name, []).append(address)
    return groups


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environment.get(name)
    if text is None:
        raise UserError(f"{name} is not set, which belongs to the other variables of its launcher; start it by that")
    if not text.isascii() or not text.isdigit() or not least <= int(text[:20]) <= most:
        raise UserError(
            f"{name}={show(text)} must be a whole number from {least} to {most:,}; unset it, or start by torchrun"
        )
    return int(text)


def _backends() -> list[str]:
    from torch import distributed

    if not distributed.is_available():
        return []
    has = {
        "gloo": distributed.is_gloo_available(), "nccl": distributed.is_nccl_available(),
        "mpi": distributed.is_mpi_available(),
    }  # fmt: skip
    return [name for name, there in has.items() if there]


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

    found: list[GPUDevice] = []
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        found.append(
            GPUDevice(
                name=facts.name,
                memory_bytes=facts.total_memory,
                capability=f"{facts.major}.{facts.minor}",
                bf16=(facts.major, facts.minor) >= (8, 0),
            )
        )
    if not found and torch.backends.mps.is_available():
        return [GPUDevice(name="mps", memory_bytes=None, capability=None, bf16=False)]
    return found


def _driver_version() -> str | None:
    """NVIDIA's, which Linux has in a file: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...`."""
    with suppress(OSError, StopIteration):
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace").splitlines()[:1]
        return next(word for word in " ".join(line).split() if word[:1].isdigit() and word.count(".") >= 1)
    return None

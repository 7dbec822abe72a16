"""Memory of the devices of this machine."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

HEADROOM = 0.1  # assumed fraction of memory for the CUDA context and fragmentation


def usable_memory(memory: int | None) -> int | None:
    """Return the part of a memory that a run may use, without headroom; None if the size is unknown.

    Args:
        memory: Size of the memory in bytes; None if unknown.
    """
    return None if memory is None else int((1 - HEADROOM) * memory)


def device_memory() -> int | None:
    """Return the memory in bytes of the first GPU, or of the machine if there is no GPU; None if unknown."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory
    return machine_memory()


def free_memory(accelerator: str, devices: int) -> int | None:
    """Return the free memory in bytes for one device of a run; None if unknown.

    For a GPU, this is the free memory of the current one. For a CPU, it is an equal share of the memory that is
    available to this process.

    Args:
        accelerator: Device type: cpu, cuda or mps.
        devices: Number of devices of the run on this machine.
    """
    import torch

    if accelerator == "cuda":
        return torch.cuda.mem_get_info()[0]
    free = min(free_of_linux(Path("/")), default=machine_memory())
    return None if free is None else free // devices


def machine_memory() -> int | None:
    """Return the physical memory of this machine in bytes; None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # another system, or unknown
        return None


def free_of_linux(root: Path) -> Iterator[int]:
    """Yield the available bytes of Linux, and those left within a container's limit (cgroup v2).

    A value that cannot be read is omitted.

    Args:
        root: Root of the file system.
    """
    try:
        if match := re.search(
            r"^MemAvailable: +(\d+) kB$", (root / "proc/meminfo").read_text(encoding="ascii"), re.MULTILINE
        ):
            yield 1024 * int(match[1])
        group = root / "sys/fs/cgroup"
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        if limit != "max":
            yield max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return

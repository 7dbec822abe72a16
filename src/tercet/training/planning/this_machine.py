"""How much memory a device of this machine has."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

HEADROOM = 0.1  # of a device's memory, which the context of CUDA and what lies between tensors may take: an assumption


def usable_memory(memory: int | None) -> int | None:
    """Bytes that a run is counted to have of so many; None where nobody knows."""
    return None if memory is None else int((1 - HEADROOM) * memory)


def device_memory() -> int | None:
    """Bytes of the first GPU, else of the machine; None where the system does not say."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory
    return machine_memory()


def free_memory(accelerator: str, devices: int) -> int | None:
    """Bytes that one of `devices` on this machine may still take: of a GPU what is free, of a CPU a share of what is
    available to this process; None where the system does not say."""
    import torch

    if accelerator == "cuda":
        return torch.cuda.mem_get_info()[0]
    free = min(free_of_linux(Path("/")), default=machine_memory())
    return None if free is None else free // devices


def machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # another system, or one that does not know
        return None


def free_of_linux(root: Path) -> Iterator[int]:
    """What Linux says is available, and what the limit of a container leaves (cgroup v2)."""
    try:
        if match := re.search(r"^MemAvailable: +(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE):
            yield 1024 * int(match[1])
        group = root / "sys/fs/cgroup"
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if limit != "max":
            yield max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return

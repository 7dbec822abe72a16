"""Memory of the devices of this machine."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

HEADROOM = 0.1  # assumed fraction of memory for the CUDA context and fragmentation


def usable_memory(memory: int | None) -> int | None:
    """Return the bytes of a memory that a run may use; None if the size is unknown."""
    return None if memory is None else int((1 - HEADROOM) * memory)


def device_memory() -> int | None:
    """Return the bytes of the first GPU, or else of the machine; None if unknown."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory
    return machine_memory()


def free_memory(accelerator: str, devices: int) -> int | None:
    """Return the bytes that are still free for one of `devices`; None if unknown.

    For a GPU this is its free memory, for a CPU an equal share of the memory available to this process.
    """
    import torch

    if accelerator == "cuda":
        return torch.cuda.mem_get_info()[0]
    free = min(free_of_linux(Path("/")), default=machine_memory())
    return None if free is None else free // devices


def machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # another system, or unknown
        return None


def free_of_linux(root: Path) -> Iterator[int]:
    """Yield the available memory of Linux, and the memory left by a container's limit (cgroup v2)."""
    try:
        if match := re.search(r"^MemAvailable: +(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE):
            yield 1024 * int(match[1])
        group = root / "sys/fs/cgroup"
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if limit != "max":
            yield max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return

"""The limits of this machine: matrix products in GFLOP/s, memory reads in GB/s. Shares refer to these.

They are measured before and after each row, because a machine's speed changes from minute to minute.
"""

import mmap
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
from benchmarks.speed.contender import Settings
from torch import Tensor

from tercet.kernel import linear

TIMES = 5
TOLERANCE = 1.1  # of a compute limit: a higher speed is a mistake of the measurement (caches can exceed that of memory)


def device_clock(device: torch.device) -> Callable[[], float]:
    """Return a clock that waits for the device's work, then reads seconds."""
    if device.type == "cpu":
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def gpu_limits(*, size: int = 8192, megabytes: int = 1024) -> dict[str, float]:
    """Return the GPU's GFLOP/s by precision, and the GB/s of a copy, counting bytes read and written.

    Args:
        size: Rows and columns of the square matrices.
        megabytes: Size of the copied array; more than any cache holds.
    """
    device = torch.device("cuda")
    torch.cuda.empty_cache()  # of memory that contenders have released
    seconds = partial(_seconds, clock=device_clock(device))
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    result: dict[str, float] = {}
    for name, matmul in (("fp32", "highest"), ("fp32 TF32", "high")):
        with Settings(matmul=matmul).apply():
            result[name] = 2e-9 * size**3 / seconds(lambda: a @ b)
    c, d = a.bfloat16(), b.bfloat16()
    result["bf16"] = 2e-9 * size**3 / seconds(lambda: c @ d)
    source = torch.randn(megabytes * 2**20 // 4, device=device)
    target = torch.empty_like(source)
    result["memory"] = 1e-9 * 2 * source.nbytes / seconds(lambda: target.copy_(source))
    return result


def limits(*, bf16: bool, size: int = 1024, megabytes: int = 256) -> dict[str, float]:
    """Return GFLOP/s by precision and path, and GB/s; each the best of several tries.

    Args:
        size: Rows and columns of the square matrices.
        megabytes: Size of the array read in large pages; more than any cache holds.
    """
    a, b = torch.randn(size, size), torch.randn(size, size)
    result: dict[str, float] = {}
    for name, matmul in (("fp32", "highest"), ("fp32 oneDNN", "medium")):
        with Settings(matmul=matmul).apply():
            result[name] = 2e-9 * size**3 / _seconds(lambda: a @ b)
    if bf16:
        c, d = a.bfloat16(), b.bfloat16()
        result["bf16"] = 2e-9 * size**3 / _seconds(lambda: c @ d)
    wide = _ones_in_large_pages(megabytes * 2**20 // 16384, 4096)
    vector, row = torch.ones(4096), torch.ones(1, 4096)
    ways: list[Callable[[], object]] = [wide.sum, lambda: wide @ vector]
    with torch.inference_mode():
        if linear(row, wide, None, None) is not None:  # a kernel that prefetches
            ways.append(lambda: linear(row, wide, None, None))
        # The fastest of these reads differs between machines.
        result["memory"] = 1e-9 * wide.nbytes / min(map(_seconds, ways))
    return result


def _ones_in_large_pages(rows: int, columns: int) -> Tensor:
    """Return ones (rows, columns) in float32, in pages of 2 MB if Linux provides them: these are read faster."""
    memory = mmap.mmap(-1, 4 * rows * columns)
    with suppress(AttributeError, OSError):  # another operating system, or Linux without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).fill_(1).view(rows, columns)


def share(
    limits: dict[str, float], *, precision: str, gflops: float | None, gbytes: float | None
) -> tuple[str, float] | None:
    """Return the limit that a contender uses most, and its share of it; None if neither is known.

    Raises:
        ValueError: If it does more products than this machine can: its precision is not the stated one, or the machine
            was slower when its limit was measured.
    """
    if gflops is not None:
        paths = [value for name, value in limits.items() if name.split()[0] == precision]
        # int8 applies to the weights only: products are still in fp32.
        top = max(paths or [value for name, value in limits.items() if name.startswith("fp32")])
        if gflops > TOLERANCE * top:
            raise ValueError(
                f"{gflops:.0f} GFLOP/s in {precision}, of which this machine does {top:.0f}; measure again"
            )
        return "matmul", gflops / top
    if gbytes is not None:
        return "memory", gbytes / limits["memory"]
    return None


def _seconds(work: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter) -> float:
    work()
    times: list[float] = []
    for _ in range(TIMES):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)

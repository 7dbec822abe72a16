"""Timing of work on devices that run asynchronously."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context of a precision (fp32, bf16 or fp16), which has no effect for fp32."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def time_call(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result of `work`, and its duration in seconds."""
    start = clock()
    result = work()
    return result, clock() - start


def clock() -> float:
    """Wait for the CUDA device, if there is one, and return the time in seconds from an arbitrary start."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def median_seconds(work: Callable[[], object], *, warmup: int, repeats: int) -> float:
    """Return the median seconds of `repeats` calls of `work`, after `warmup` calls that are not counted."""
    times: list[float] = []
    for i in range(warmup + repeats):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if i >= warmup:
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]

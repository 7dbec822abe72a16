"""Cache of measurements on this machine, so that choices that depend on them stay the same from run to run."""

import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.kernel import cpu_instructions, cpu_model
from tercet.storage import lock_file, read_sealed_json, write_sealed_json

# Environment variables that disable instructions in PyTorch and its libraries, and so change the times of a CPU.
INSTRUCTION_LIMITS = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
WARMUP, REPEATS = 3, 21  # number of pairs of timings that are discarded, and of those that count


class MeasurementCache:
    """Cache of measured numbers for this CPU, number of threads, PyTorch version and instruction limits.

    Args:
        kind: Kind of measurement, which is also the name of its folder in Tercet's cache.
        names: Names of the measured numbers.
    """

    def __init__(self, kind: str, names: tuple[str, ...]) -> None:
        self._names = names
        self._machine = {
            "cpu": cpu_model(),
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
        }
        self._machine |= {name: os.environ[name] for name in INSTRUCTION_LIMITS if os.environ.get(name)}
        key = json.dumps([self._machine, sorted(cpu_instructions())], sort_keys=True)
        self.path: Path = cache_dir() / kind / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def read_or_measure(self, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return the cached numbers; measure and cache them if there are none.

        If several processes start at once, one of them measures and all use its numbers, so that they do not disturb
        each other. If the cache cannot be written, the next run measures again.

        Args:
            measure: Function that measures the numbers and returns them by name.
        """
        cached = self.read()
        if cached is None:
            with suppress(UserError, OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with lock_file(self.path.with_suffix(".lock")):
                    cached = self.read()
                    if cached is None:
                        cached = measure()
                        self.write(cached)
        return measure() if cached is None else cached

    def read(self) -> dict[str, float] | None:
        """Return the cached numbers, or None if there are none or the file is damaged."""
        with suppress(UserError, KeyError, TypeError, ValueError):
            cached = read_sealed_json(self.path)
            return {name: float(cached[name]) for name in self._names}
        return None

    def write(self, numbers: dict[str, float]) -> None:
        """Write numbers to the cache, whose folder must exist.

        Raises:
            UserError, OSError: If the cache cannot be written.
        """
        write_sealed_json(self.path, {**self._machine, **{name: str(numbers[name]) for name in self._names}})


def median_ratio(work: Callable[[], object], reference: Callable[[], object]) -> float:
    """Return the time of `work` divided by that of `reference`, as the median over pairs of calls.

    The two are called alternately, so that other load on the machine affects both.
    """
    times = [(_seconds(work), _seconds(reference)) for _ in range(WARMUP + REPEATS)]
    return statistics.median(seconds / reference_seconds for seconds, reference_seconds in times[WARMUP:])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

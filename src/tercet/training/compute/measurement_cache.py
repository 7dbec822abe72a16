"""What is measured on this machine and kept in its cache, since measured anew it would be something else: what follows
from it stays what it is."""

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

# By which PyTorch and its libraries are told to leave instructions unused: the same CPU multiplies in other times then.
INSTRUCTION_LIMITS = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
WARMUP, REPEATS = 3, 21


class MeasurementCache:
    """Numbers of these names, of this CPU with these threads, PyTorch and limits.

    Args:
        kind: their folder in the cache.
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
        """Return what is kept, or measure it and keep it. Of several processes that start at once one measures, so
        they do not disturb each other, and all of them take its numbers. If the cache cannot be written, the next run
        measures again."""
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
        """None where there are none, or what is there is damaged."""
        with suppress(UserError, KeyError, TypeError, ValueError):
            cached = read_sealed_json(self.path)
            return {name: float(cached[name]) for name in self._names}
        return None

    def write(self, numbers: dict[str, float]) -> None:
        """Keep them, in a folder that exists.

        Raises:
            UserError, OSError: where the cache cannot be written to.
        """
        write_sealed_json(self.path, {**self._machine, **{name: str(numbers[name]) for name in self._names}})


def median_ratio(work: Callable[[], object], reference: Callable[[], object]) -> float:
    """Return the median ratio of the times of `work` and `reference`.

    The two are timed in turn, so that other load on the machine affects both.
    """
    times = [(_seconds(work), _seconds(reference)) for _ in range(WARMUP + REPEATS)]
    return statistics.median(seconds / reference_seconds for seconds, reference_seconds in times[WARMUP:])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

"""CTranslate2, in a separate process.

In one process with PyTorch it would use PyTorch's OpenMP from its own threads. OpenMP then counts more threads than
there are cores and puts all workers to sleep at every barrier: on two cores, every contender of a row took twice the
time that it takes in a separate process.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from benchmarks.speed.machine import peak_memory

Result = TypeVar("Result")
TYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}

_model: Any = None  # in the separate process


class CTranslate2Process:
    """A model of CTranslate2 in a separate process.

    Args:
        kind: Class of `ctranslate2` that opens the folder.
        precision: Precision, as in `Settings`.
    """

    def __init__(self, kind: Literal["Generator", "Translator"], folder: Path, precision: str) -> None:
        initargs = (kind, str(folder), TYPES[precision], torch.get_num_threads())
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_open, initargs=initargs)

    def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call `function(model, *args)` in the process; a module-level function, because it is pickled by name."""
        return self._pool.submit(_answer, function, *args).result()

    def peak_memory(self) -> int:
        return self._pool.submit(peak_memory).result()

    def close(self) -> None:
        self._pool.shutdown()


def _open(kind: str, folder: str, compute_type: str, threads: int) -> None:
    global _model
    import ctranslate2

    _model = getattr(ctranslate2, kind)(folder, compute_type=compute_type, intra_threads=threads)


def _answer(function: Callable[..., Any], *args: Any) -> Any:
    return function(_model, *args)

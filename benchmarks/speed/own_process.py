"""A contender in a separate process, for settings of a whole process: the allocator keeps freed memory.

Tercet makes glibc keep it (`tercet.memory`). By default glibc adapts to the largest block that was ever freed, so in
one process a library would find more memory kept than in a separate one.
"""

import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import Any

import numpy as np
import torch
from benchmarks.speed.contender import Contender, Settings
from benchmarks.speed.row import Options, Row
from benchmarks.speed.without import full_lineup
from torch import Tensor

from tercet.memory import keep_memory

_contender: Contender  # in the separate process


class OwnProcess(Contender):
    """A proxy for `contender`, which a separate process creates from the same row and runs."""

    def __init__(self, contender: Contender, row: str, options: Options) -> None:
        super().__init__(
            contender.name,
            contender.side,
            contender.settings,
            flops=contender.flops_per_token,
            bytes=contender.bytes_per_token,
        )
        self._description, self._initargs = (
            contender.describe(),
            (row, options, contender.name, contender.settings, torch.get_num_threads()),
        )
        if hasattr(contender, "quality"):
            self.quality = lambda: self._call("quality")

    def describe(self) -> str:
        return self._description

    def setup(self) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_open, initargs=self._initargs)
        self._call("setup")

    def run(self, n: int) -> float:
        return self._call("run", n)

    def answer(self) -> Tensor | None:
        array = self._call("answer")
        return None if array is None else torch.from_numpy(array)

    def peak_memory(self) -> int:
        return self._call("peak_memory")

    def close(self) -> None:
        self._pool.shutdown()

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._pool.submit(_answer, method, *arguments).result()


def place_contenders(contenders: list[Contender], row: Row, options: Options) -> list[Contender]:
    """Return each contender in a separate process or in this one; at tiny scale, for tests, all in this one."""
    if options.scale == "tiny":
        return contenders
    return [
        OwnProcess(contender, row.name, options)
        if row.separate_processes or contender.settings.keeps_memory
        else contender
        for contender in contenders
    ]


def find_contender(row: Row, options: Options, name: str) -> Contender:
    """Return a row's contender, for a process in which it is the only one.

    Raises:
        ValueError: If the row has no contender of that name.
    """
    contender = next((contender for contender in full_lineup(row, options).contenders if contender.name == name), None)
    if contender is None:
        raise ValueError(f"{row.name} has no contender {name!r}")
    if contender.settings.keeps_memory:
        keep_memory()
    return contender


def _open(row: str, options: Options, name: str, settings: Settings, threads: int) -> None:
    global _contender
    from benchmarks.speed.rows import ROWS

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _contender = find_contender(ROWS[row], options, name)
    _contender.settings = settings  # the settings of the label, not those that `auto` would choose in this process


def _end_with_parent() -> None:
    """End this process with its parent: a killed parent closes no pool, and would leave gigabytes of contenders."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(method: str, *arguments: Any) -> Any:
    with _contender.settings.apply():
        answer = getattr(_contender, method)(*arguments)
    return np.asarray(answer) if isinstance(answer, Tensor) else answer

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
from benchmarks.speed.row import Asked, Row
from benchmarks.speed.without import lineup_of
from torch import Tensor

from tercet.memory import keep_memory

_one: Contender  # in the separate process


class OwnProcess(Contender):
    """A proxy for `one`, which a separate process creates from the same row and runs."""

    def __init__(self, one: Contender, row: str, asked: Asked) -> None:
        super().__init__(one.name, one.side, one.settings, flops=one.flops_per_token, bytes=one.bytes_per_token)
        self._told, self._given = one.told(), (row, asked, one.name, one.settings, torch.get_num_threads())
        if hasattr(one, "quality"):
            self.quality = lambda: self._ask("quality")

    def told(self) -> str:
        return self._told

    def setup(self) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_open, initargs=self._given)
        self._ask("setup")

    def run(self, n: int) -> float:
        return self._ask("run", n)

    def answer(self) -> Tensor | None:
        found = self._ask("answer")
        return None if found is None else torch.from_numpy(found)

    def peak_memory(self) -> int:
        return self._ask("peak_memory")

    def close(self) -> None:
        self._pool.shutdown()

    def _ask(self, what: str, *given: Any) -> Any:
        return self._pool.submit(_answer, what, *given).result()


def placed(contenders: list[Contender], row: Row, asked: Asked) -> list[Contender]:
    """Return each contender in a separate process or in this one; at tiny scale, for tests, all in this one."""
    if asked.scale == "tiny":
        return contenders
    return [OwnProcess(one, row.name, asked) if row.apart or one.settings.keeps_memory else one for one in contenders]


def found(row: Row, asked: Asked, name: str) -> Contender:
    """Return a row's contender, for a process in which it is the only one.

    Raises:
        ValueError: If the row has no contender of that name.
    """
    one = next((one for one in lineup_of(row, asked).contenders if one.name == name), None)
    if one is None:
        raise ValueError(f"{row.name} has no contender {name!r}")
    if one.settings.keeps_memory:
        keep_memory()
    return one


def _open(row: str, asked: Asked, name: str, settings: Settings, threads: int) -> None:
    global _one
    from benchmarks.speed.rows import ROWS

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _one = found(ROWS[row], asked, name)
    _one.settings = settings  # the settings of the label, not those that `auto` would choose in this process


def _end_with_parent() -> None:
    """End this process with its parent: a killed parent closes no pool, and would leave gigabytes of contenders."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(what: str, *given: Any) -> Any:
    with _one.settings.in_force():
        answer = getattr(_one, what)(*given)
    return np.asarray(answer) if isinstance(answer, Tensor) else answer

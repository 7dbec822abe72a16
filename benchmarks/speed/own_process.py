"""A contender in a process of its own, for what holds for a whole process: which freed memory is kept.

Ours tells glibc to keep it (`tercet.memory`). By itself glibc goes by the largest block that was ever freed: a peer
beside others finds more kept than it would alone.
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

_one: Contender  # in its own process


class OwnProcess(Contender):
    """Stands for `one`, which a process of its own makes from the same row and does the work of."""

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
    """Each where it is to work: in a process of its own, or in this one; at tiny scale, for tests, all in this one."""
    if asked.scale == "tiny":
        return contenders
    return [OwnProcess(one, row.name, asked) if row.apart or one.settings.keeps_memory else one for one in contenders]


def found(row: Row, asked: Asked, name: str) -> Contender:
    """A row's contender, in a process that is its own.

    Raises:
        ValueError: where the row has none of that name.
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
    _one.settings = settings  # what `auto` came to is what the label says, whatever it would come to here


def _end_with_parent() -> None:
    """Who was killed can close no pool: its contenders would stay, with gigabytes each."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(what: str, *given: Any) -> Any:
    with _one.settings.in_force():
        answer = getattr(_one, what)(*given)
    return np.asarray(answer) if isinstance(answer, Tensor) else answer

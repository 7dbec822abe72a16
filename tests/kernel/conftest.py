"""Fixtures and helpers shared by the tests of several kernels."""

import math
from typing import Protocol

import pytest

from tercet.kernel import tuning
from tercet.kernel.tuning import NEVER, WorkRange


class UseFrom(Protocol):
    def __call__(self, **min_work: float) -> None: ...


@pytest.fixture
def use_from(monkeypatch: pytest.MonkeyPatch) -> UseFrom:
    """Return a function that enables only the named float32 kernels, each from the given work on."""

    def use(**min_work: float) -> None:
        table = {name: NEVER if name.endswith("float32") else tuning.ALWAYS for name in tuning.TABLE_KEYS}
        table |= {f"{kernel} float32": WorkRange(work, math.inf) for kernel, work in min_work.items()}
        monkeypatch.setattr(tuning, "kernel_table", lambda: table)

    return use

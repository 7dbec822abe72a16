"""Concurrent starts on a new machine: one process compiles, one measures, and all make the same choices."""

import os
import time
from pathlib import Path

import pytest
from tiny_runs import child, exit_code

from tercet.kernel.build import build_id, choose_kernels, kernels, library
from tercet.training.compute import auto_arithmetic


@pytest.mark.skipif(library() is None, reason="no kernels here, so there is nothing to load")
@pytest.mark.parametrize(
    "starts", [pytest.param(1, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.exhaustive)]
)
def test_one_compiles_and_one_measures(starts: int, tmp_path: Path) -> None:
    """The processes are forks, which have everything imported, so that they start at the same time."""
    compiler, calls, measured = (tmp_path / name for name in ("c++", "calls", "measured"))
    compiler.write_text(f'#!/bin/sh\nfor last; do :; done\necho >> {calls}\nsleep 0.2\ncp {kernels()._name} "$last"\n')
    compiler.chmod(0o755)

    def measure() -> dict[str, float]:
        with measured.open("a") as file:
            file.write(".")
        time.sleep(1)  # long enough for the other process to measure too, if it could
        return {"bf16": time.time(), "medium": 1.0}

    def start(answer: Path) -> None:
        variables = {"CXX": str(compiler), "TERCET_CACHE": str(answer.parent), "TERCET_KERNEL": "native"}
        os.environ.update(variables)
        choose_kernels.cache_clear()
        auto_arithmetic.measure_products = measure
        answer.write_text(f"{build_id()} {auto_arithmetic.product_times()}")

    for number in range(starts):
        calls.write_text("")
        measured.write_text("")
        answers = [tmp_path / str(number) / name for name in "ab"]
        answers[0].parent.mkdir()
        processes = [child(lambda answer=answer: start(answer)) for answer in answers]
        assert [exit_code(process) for process in processes] == [0, 0]
        assert answers[0].read_text() == answers[1].read_text()
        assert measured.read_text() == "."
        assert len(calls.read_text()) == 2  # compiled and linked once

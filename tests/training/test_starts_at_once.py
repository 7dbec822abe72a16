"""Concurrent starts on a new machine: one process compiles, one measures, and all make the same choices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tercet.kernel.build import kernels, library

CODE = """
import sys, time
from tercet.kernel import build_id
from tercet.training.compute import auto_arithmetic

def measure():
    print("measured", file=sys.stderr)
    time.sleep(3)  # long enough for the other process to measure too, if it could
    return {"bf16": time.time(), "medium": 1.0}

auto_arithmetic.measure_products = measure
print(build_id(), auto_arithmetic.product_times())
"""


@pytest.mark.skipif(library() is None, reason="no kernels here, so there is nothing to load")
@pytest.mark.parametrize(
    "starts", [pytest.param(1, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.exhaustive)]
)
def test_one_compiles_and_one_measures(starts: int, tmp_path: Path) -> None:
    compiler, calls = tmp_path / "c++", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\nfor last; do :; done\necho >> {calls}\nsleep 0.2\ncp {kernels()._name} "$last"\n')
    compiler.chmod(0o755)
    for start in range(starts):
        calls.write_text("")
        variables = {"CXX": str(compiler), "TERCET_CACHE": str(tmp_path / str(start)), "TERCET_KERNEL": "native"}
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", CODE], env=os.environ | variables,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        outputs = [process.communicate() for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        assert len({answer for answer, _ in outputs}) == 1
        assert sum(notes.count("measured") for _, notes in outputs) == 1
        assert len(calls.read_text()) == 2  # compiled and linked once

"""When kernels are compiled and loaded, and what importing them costs."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tercet.kernel import warm_up
from tercet.kernel.build import constant_when_compiled, library


def in_a_process(code: str, **environment: str) -> Any:
    command = [sys.executable, "-c", f"import json, sys; {code}"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_importing_compiles_and_loads_nothing() -> None:
    loaded = in_a_process(
        "import tercet.kernel; from tercet.kernel.build import choose_kernels; "
        "print(json.dumps([choose_kernels.cache_info().currsize, 'torch._dynamo' in sys.modules]))"
    )
    assert loaded == [0, False]  # the compiler of graphs alone takes a second to import


@pytest.mark.slow
def test_a_warm_up_loads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warm_up() == (library() is not None)
    assert in_a_process("from tercet.kernel import warm_up; print(json.dumps(warm_up()))", TERCET_KERNEL="off") is False


def test_a_constant_is_marked_as_torch_marks_it() -> None:
    def ours() -> int:
        return 1

    def theirs() -> int:
        return 1

    constant_when_compiled(ours)
    torch.compiler.assume_constant_result(theirs)
    assert vars(ours) == vars(theirs) != {}

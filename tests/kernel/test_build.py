"""When kernels are compiled and loaded, and what importing them costs."""

import ctypes
import json
import subprocess
import sys

import pytest
import torch

from tercet.kernel import warm_up
from tercet.kernel.build import constant_when_compiled, library

LOOK = """
import json, os, sys
from tercet.kernel import warm_up
from tercet.kernel.build import choose_kernels
found = [choose_kernels.cache_info().currsize, "torch._dynamo" in sys.modules]
os.environ["TERCET_KERNEL"] = "off"
print(json.dumps([*found, warm_up()]))
"""


@pytest.mark.slow
def test_import_and_off_setting_do_not_compile_or_load() -> None:
    process = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert json.loads(process.stdout) == [0, False, False]  # importing the graph compiler takes a second


def test_warm_up_loads_kernels() -> None:
    assert warm_up() == (library() is not None)


def test_constant_is_marked_as_in_torch() -> None:
    def ours() -> int:
        return 1

    def theirs() -> int:
        return 1

    constant_when_compiled(ours)
    torch.compiler.assume_constant_result(theirs)
    assert vars(ours) == vars(theirs) != {}


class InterruptedBuild:
    """A tensor whose `data_ptr` raises KeyboardInterrupt, as if the user had pressed Ctrl-C."""

    def data_ptr(self) -> int:
        raise KeyboardInterrupt


def test_ctrl_c_during_argument_conversion_is_raised() -> None:
    kernels = library()
    if kernels is None:
        pytest.skip("no compiled kernels")
    with pytest.raises(KeyboardInterrupt):
        kernels.linear_float32(InterruptedBuild(), *[None] * 8)
    with pytest.raises(ctypes.ArgumentError):
        kernels.linear_float32("no tensor", *[None] * 8)

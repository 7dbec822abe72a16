"""When kernels are compiled and loaded, and marks for the graph compiler that do not import it."""

import ctypes
from typing import NoReturn

import pytest
import torch

from tercet.kernel import build, warm_up
from tercet.kernel.build import KernelChoice, choose_kernels, constant_when_compiled, library


def test_off_setting_does_not_compile_or_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_startup.py tests that imports do neither."""

    def fail(*_: object) -> NoReturn:
        raise AssertionError("kernels were compiled or loaded")

    monkeypatch.setenv("TERCET_KERNEL", "off")
    monkeypatch.setattr(build, "find_or_compile", fail)
    monkeypatch.setattr(build, "_load", fail)
    assert choose_kernels.__wrapped__() == KernelChoice("none", "none", "TERCET_KERNEL=off")


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

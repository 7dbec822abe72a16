"""A process is alive or has ended, on POSIX and with the functions of Windows, which has no signal 0."""

import ctypes
import os
import subprocess
import sys

import pytest

from tercet.storage.processes import ERROR_ACCESS_DENIED, SYNCHRONIZE, WAIT_TIMEOUT, is_alive

HANDLE = 2**40 + 8  # does not fit an int of C


def test_process_is_alive_until_it_ends() -> None:
    assert is_alive(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as process:
        assert is_alive(process.pid)
        process.kill()
    assert not is_alive(process.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**100])
def test_invalid_id_is_not_alive(pid: int) -> None:
    assert not is_alive(pid)


def test_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    assert is_alive(1)


class Function:
    """A function of kernel32."""

    restype: object = ctypes.c_int

    def __init__(self, answer: int | None) -> None:
        self.answer, self.calls = answer, list[tuple[object, ...]]()

    def __call__(self, *arguments: object) -> int | None:
        self.calls.append(tuple(getattr(argument, "value", argument) for argument in arguments))
        return self.answer


class Kernel32:
    def __init__(self, handle: int | None, wait: int) -> None:
        self.OpenProcess, self.WaitForSingleObject = Function(handle), Function(wait)
        self.CloseHandle = Function(1)


@pytest.mark.parametrize(
    ("handle", "wait", "error", "expected"),
    [
        (HANDLE, WAIT_TIMEOUT, 0, True),
        (HANDLE, 0, 0, False),  # ended, but another program has a handle
        (None, 0, ERROR_ACCESS_DENIED, True),
        (None, 0, 87, False),  # ERROR_INVALID_PARAMETER: no such process
    ],
)
def test_windows_process_is_waited_for_and_not_signaled(
    handle: int | None, wait: int, error: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Kernel32(handle, wait)
    monkeypatch.setattr(sys, "platform", "win32")

    def load(name: str, use_last_error: bool) -> Kernel32:
        return library

    def kill(pid: int, number: int) -> None:
        pytest.fail("signal 0 ends a process on Windows")

    monkeypatch.setattr(ctypes, "WinDLL", load, raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: error, raising=False)
    monkeypatch.setattr(os, "kill", kill)
    assert is_alive(4321) is expected
    assert library.OpenProcess.calls == [(SYNCHRONIZE, False, 4321)]
    assert library.OpenProcess.restype is ctypes.c_void_p
    assert library.CloseHandle.calls == [] if handle is None else [(HANDLE,)]

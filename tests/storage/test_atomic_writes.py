"""A file is always complete under its name: whatever interrupts a write leaves the old or the new file."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from full_disk import full_disk
from tercet.config import UserError
from tercet.storage import atomic, write_atomically


def test_bytes_and_functions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    assert path.read_bytes() == b"old"

    def write(file: BinaryIO) -> None:
        file.write(b"new")
        assert path.read_bytes() == b"old"  # until all bytes are written

    write_atomically(str(path), write)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def write(file: BinaryIO) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, r"^disk full while writing .*file; free some space"),
        (errno.EDQUOT, r"^disk full while writing .*file; free some space"),
        (errno.EFBIG, r"^file size limit exceeded by .*file; raise it \(ulimit -f\), or choose another folder$"),
        (errno.EROFS, r"^cannot write .*file: Read-only file system; choose another folder"),
    ],
)
@pytest.mark.parametrize("os_function", ["fsync", "replace"])
def test_write_error_keeps_the_old_file(
    number: int, words: str, os_function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, os_function, refuse)
    with pytest.raises(UserError, match=words):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_full_disk_is_found_behind_another_error(tmp_path: Path) -> None:
    """Libraries raise their own errors after a failed write, as PyTorch's archive writer does."""
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def write(file: BinaryIO) -> None:
        try:
            file.write(bytes(100_000))  # more than the buffer
        except OSError:
            raise RuntimeError("unexpected pos 576 vs 466") from None

    with full_disk(1000), pytest.raises(UserError, match=r"^disk full while writing .*file; free some space"):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*: No such file or directory; choose another folder"):
        write_atomically(tmp_path / "none" / "file", b"")


KILLED_PROGRAM = """
import os, sys, time
from tercet.storage import write_atomically
def slow(file):
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
write_atomically(sys.argv[1], slow)
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_killed_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with subprocess.Popen([sys.executable, "-c", KILLED_PROGRAM, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        temporary_file = f".file.{atomic._host()}-{process.pid}-0.new"
        write_atomically(path, b"meanwhile")  # the other writer is alive, so its temporary file is kept
        assert sorted(os.listdir(tmp_path)) == [temporary_file, "file"]
        process.send_signal(signal.SIGKILL)
    assert path.read_bytes() == b"meanwhile"
    assert sorted(os.listdir(tmp_path)) == [temporary_file, "file"]
    write_atomically(tmp_path / "another", b"")  # removes only its own temporary files
    assert temporary_file in os.listdir(tmp_path)
    write_atomically(path, b"new")
    assert sorted(os.listdir(tmp_path)) == ["another", "file"]
    assert path.read_bytes() == b"new"


def test_on_windows_a_rename_waits_for_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has the file open at first."""
    rename, tries = os.replace, 0

    def replace(old: Path, new: Path) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        rename(old, new)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(UserError, match="cannot write"):  # POSIX: a permission that is missing stays so
        write_atomically(tmp_path / "a", b"new")
    tries = 0
    monkeypatch.setattr(atomic.sys, "platform", "win32")
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert tries == 3
    tries = -1_000_000
    monkeypatch.setattr(atomic, "RENAME_SECONDS", 0.02)
    with pytest.raises(UserError, match="cannot write"):
        write_atomically(tmp_path / "a", b"newer")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

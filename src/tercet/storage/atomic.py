"""Files and folders that are whole or not there: written beside their place under another name, then renamed into it.

A rename inside a folder happens at once or not at all, so a reader, and a process killed at any moment, leave the old
file or the new one, never half of either. A folder that is there already changes places with the new one, at once too
where the system can exchange two names (Linux, macOS). What a killed process left behind goes at the next write.
"""

import ctypes
import errno
import itertools
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tercet.config import UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SWAP = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
HERE = -100  # AT_FDCWD: paths as they are

_writes = itertools.count()  # of this process, each under a name of its own


def write_atomically(path: Path | str, data: bytes | Callable[[BinaryIO], None]) -> None:
    """Write `path` whole, or leave it as it was.

    Args:
        path: in a folder that exists.
        data: the bytes, or a function that writes them to the open file it is given.

    Raises:
        UserError: where the disk is full, or the file system refuses.
    """
    path = Path(path)
    with report_write_errors(path):
        _remove_stale(path)
        new = _beside(path)
        try:
            with new.open("wb") as file:
                if callable(data):
                    data(file)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())  # the bytes before the name: a power cut must not keep the name alone
            os.replace(new, path)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


@contextmanager
def replace_folder(path: Path, *, keep: Callable[[str], bool] = lambda name: False) -> Generator[Path]:
    """A new folder to write to, which takes the place of `path` at the end; after an error all is as it was.

    Args:
        path: missing folders above it are made.
        keep: by its name, whether something that lies directly in the old folder comes along.

    Raises:
        OSError: where the disk is full, or the file system refuses.
    """
    path = path.resolve()
    missing = [folder for folder in path.parents if not folder.exists()]
    new = _beside(path)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # a file, where a folder is needed
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        _remove_stale(path)
        new.mkdir()
        yield new
        if path.is_dir():
            for old in path.iterdir():
                if keep(old.name) and not (new / old.name).exists():
                    _copy(old, new / old.name)
        _sync_folder(new)
        if not path.is_dir():
            os.replace(new, path)
        elif any(path.iterdir()):
            exchange_folders(new, path)
        else:  # nothing can be lost, and a shell that stands in it still does
            for file in new.iterdir():
                os.replace(file, path / file.name)
        _sync_folder(path.parent)
        shutil.rmtree(new, ignore_errors=True)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


def exchange_folders(one: Path, other: Path) -> None:
    """Each gets the other's name: at once where the system can, else with a moment in which `other` is not there."""
    if not _exchange(os.fsencode(one), os.fsencode(other)):
        aside = one.with_name(f"{one.name}.old")  # `_remove_stale` puts it back after a kill in between
        os.replace(other, aside)
        os.replace(one, other)
        os.replace(aside, one)


@contextmanager
def report_write_errors(path: Path) -> Generator[None]:
    """What the file system refuses is told as an error of the user's, with `path`."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from None


def refusal(path: Path, error: OSError) -> UserError:
    """Why `path` could not be written, in words for the user."""
    if error.errno in FULL:
        return UserError(f"disk full while writing {path}; make room, or choose another folder")
    return UserError(f"cannot write {path}: {error.strerror or error}; choose another folder")


def _exchange(one: bytes, other: bytes) -> bool:
    """Whether the system has exchanged the two names."""
    try:
        libc = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return libc.renamex_np(one, other, SWAP) == 0
        return libc.renameat2(HERE, one, HERE, other, SWAP) == 0
    except (OSError, AttributeError, TypeError):
        return False


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{next(_writes)}.new")


def _host() -> str:
    """This machine's name, where many share a file system: a process number means nothing on another."""
    return re.sub(r"[^\w]", "_", socket.gethostname())[:40]


def _remove_stale(path: Path) -> None:
    """Remove what writers of `path` on this machine that are no longer alive have left."""
    name = re.compile(rf"\.{re.escape(path.name)}\.{re.escape(_host())}-(\d+)-\d+\.new(\.old)?")
    for other in path.parent.iterdir():
        if (match := name.fullmatch(other.name)) and not _alive(int(match[1])):
            if match[2] and not path.exists():
                os.replace(other, path)
            elif other.is_dir():
                shutil.rmtree(other, ignore_errors=True)
            else:
                other.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # alive, and someone else's
        return True
    return True


def _copy(old: Path, new: Path) -> None:
    """As another name of the same file where that is possible; a link stays a link."""
    if old.is_dir() and not old.is_symlink():
        shutil.copytree(old, new, symlinks=True)
        return
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copy2(old, new, follow_symlinks=False)


def _sync_folder(folder: Path) -> None:
    """Put the new name itself on the disk; some systems and file systems cannot, and then it comes later."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

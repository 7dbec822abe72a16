"""Atomic writes: a file or folder is written under a temporary name and then renamed.

A rename within a folder is atomic: if the process is killed at any moment, readers find the complete old file or the
complete new one. An existing folder is swapped with the new one, which is also atomic if the system can exchange two
names (Linux, macOS); `replace_folder` describes the cases in which entries are moved one by one instead. The next write
to the same path removes the temporary files that a killed process on the same machine has left.
"""

import ctypes
import errno
import io
import itertools
import os
import re
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from tercet.config import UserError
from tercet.storage.processes import is_alive

DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT}
RENAME_EXCHANGE = 2  # flag of Linux's renameat2; RENAME_SWAP of macOS has the same value
AT_FDCWD = -100  # relative paths start at the current folder
RENAME_SECONDS = 2.0  # how long a rename waits for readers on Windows

_writes = itertools.count()  # numbers the temporary names of this process


def write_atomically(path: Path | str, data: bytes | Callable[[BinaryIO], None]) -> None:
    """Write a file completely, or leave it unchanged.

    Args:
        path: Path of the file, whose folder must exist.
        data: Content of the file, or a function that receives the open file and writes the content to it.

    Raises:
        UserError: If the disk is full or the file system reports an error, even if the function `data` raises another
            exception because of it.
    """
    path = Path(path)
    with report_write_errors(path):
        _remove_stale(path)
        new = _temporary_path(path)
        try:
            with _open_to_write(new) as file:
                if callable(data):
                    data(file)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())  # after a power failure, the new name must not exist without its bytes
            _rename(new, path)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


@contextmanager
def replace_folder(
    path: Path, *, keep: Callable[[Path], bool] = lambda entry: False, index: str | None = None
) -> Generator[Path]:
    """Yield a new, empty folder. At the end of the context, its entries replace those in `path`.

    The two folders are swapped if `path` has entries, none of them is kept, and the user is allowed to give the new
    folder the owner and mode of the old one. If the process is killed at any moment, readers then find the old folder
    or the new one.

    Otherwise entries are moved one by one: the old `index` out and the new one in, then the other old entries out and
    the other new ones in. Kept entries are not moved, so that their paths, and files that other programs have opened,
    stay valid. If the process is killed in between, the new `index` lists all new entries, so that readers notice which
    are missing. Another write completes the folder.

    The folder and replaced files keep their owner and mode if the user is allowed to set them. After an error, `path`
    is unchanged.

    Args:
        path: Folder to write. Missing parent folders are created.
        keep: Function that receives the path of an entry in the old folder and returns True to keep it. A new file
            replaces a kept file of the same name.
        index: Name of a file in the new folder that lists the others, such as a manifest; None if there is none.

    Raises:
        OSError: If the disk is full, the file system reports an error, or, when entries are moved one by one, an old
            folder has the name of a new file.
    """
    path = path.resolve()
    missing = [folder for folder in path.parents if not folder.exists()]
    new = _temporary_path(path)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # a parent is a file
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        _remove_stale(path)
        new.mkdir()
        yield new
        _sync_folder(new)
        if not path.is_dir():
            _rename(new, path)
        else:
            old = list(path.iterdir())
            for entry in old:
                _copy_owner_and_mode(entry, new / entry.name)
            # An empty folder stays in place, so that it remains the current folder of a shell in it.
            if old and not any(map(keep, old)) and _copy_owner_and_mode(path, new):
                swap_folders(new, path)
                for entry in filter(keep, new.iterdir()):  # created by another program since then
                    _rename(entry, path / entry.name)
            else:
                _replace_entries(new, path, [entry for entry in old if not keep(entry)], index)
        _sync_folder(path.parent)
        shutil.rmtree(new, ignore_errors=True)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


def _replace_entries(new: Path, path: Path, old: list[Path], index: str | None) -> None:
    """Move the `old` entries out of `path` and the entries of `new` into it, those named `index` first.

    After an error, all moves are undone.
    """
    entries, aside = sorted(new.iterdir()), new / ".old"
    old = sorted({*old, *(path / entry.name for entry in entries if os.path.lexists(path / entry.name))})
    for entry in old:
        if (new / entry.name).is_file() and entry.is_dir() and not entry.is_symlink():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(entry))
    out = [(entry, aside / entry.name) for entry in old]
    into = [(entry, path / entry.name) for entry in entries]
    moves = [*out, *into]
    moves.sort(key=lambda move: move[0].name != index)  # stable: the others keep their order
    aside.mkdir()
    completed: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            _rename(source, target)
            completed.append((source, target))
    except BaseException:
        for source, target in reversed(completed):
            _rename(target, source)
        raise
    _sync_folder(path)


def _copy_owner_and_mode(old: Path, new: Path) -> bool:
    """Give a new file or folder the owner and mode of the old one.

    Returns:
        False if the system does not allow it, else True. If one of the two does not exist, they are of different kinds,
        or they are links, nothing is changed.
    """
    try:
        old_status, new_status = old.lstat(), new.lstat()
    except FileNotFoundError:
        return True
    if stat.S_IFMT(old_status.st_mode) != stat.S_IFMT(new_status.st_mode) or stat.S_ISLNK(old_status.st_mode):
        return True
    try:
        if (old_status.st_uid, old_status.st_gid) != (new_status.st_uid, new_status.st_gid):
            os.chown(new, old_status.st_uid, old_status.st_gid)
        new.chmod(stat.S_IMODE(old_status.st_mode))
    except OSError:
        return False
    return True


def swap_folders(first: Path, second: Path) -> None:
    """Swap two folders, atomically if the system can. Otherwise, `second` does not exist for a moment."""
    if not _exchange(os.fsencode(first), os.fsencode(second)):
        aside = first.with_name(f"{first.name}.old")  # `_remove_stale` moves it back if this process is killed here
        _rename(second, aside)
        _rename(first, second)
        _rename(aside, first)


@contextmanager
def report_write_errors(path: Path) -> Generator[None]:
    """Raise the `write_failure` of `path` instead of each OSError within the context."""
    try:
        yield
    except OSError as error:
        raise write_failure(path, error) from None


def write_failure(path: Path, error: OSError) -> UserError:
    """Return a UserError which reports that `path` cannot be written because of `error`."""
    if error.errno in DISK_FULL_ERRORS:
        return UserError(f"disk full while writing {path}; free some space, or choose another folder")
    if error.errno == errno.EFBIG:  # the limit of a shell, a job or a file system such as FAT
        return UserError(f"file size limit exceeded by {path}; raise it (ulimit -f), or choose another folder")
    return UserError(f"cannot write {path}: {error.strerror or error}; choose another folder")


class _RawFile(io.FileIO):
    """Unbuffered file that stores the first OSError of its writes in `failure`."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = self.failure or error
            raise


@contextmanager
def _open_to_write(path: Path) -> Generator[BinaryIO]:
    """Open a new file for writing.

    If a write fails, its OSError is raised instead of any other exception that the context raises because of it. For
    example, PyTorch's archive writer raises "unexpected pos 576 vs 466" if the disk is full.
    """
    raw = _RawFile(path, "wb")
    try:
        with io.BufferedWriter(raw) as file:
            yield cast(BinaryIO, file)
    except Exception:
        if raw.failure is not None:
            raise raw.failure from None
        raise


def _exchange(first: bytes, second: bytes) -> bool:
    """Exchange two names, and return whether the system did so."""
    try:
        libc = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return libc.renamex_np(first, second, RENAME_EXCHANGE) == 0
        return libc.renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE) == 0
    except (OSError, AttributeError, TypeError):
        return False


def _rename(old: Path, new: Path) -> None:
    """Rename a file or folder, replacing an existing file.

    Windows rejects this while another process, for example a reader or a virus scanner, has one of the files open. The
    rename is then repeated for `RENAME_SECONDS`.
    """
    deadline = time.monotonic() + RENAME_SECONDS
    while True:
        try:
            os.replace(old, new)
            return
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{next(_writes)}.new")


def _host() -> str:
    """Return the name of this machine, without which process ids are ambiguous on a shared file system."""
    return re.sub(r"[^\w]", "_", socket.gethostname())[:40]


def is_being_written(path: Path) -> bool:
    """Return whether a process on this machine is writing a replacement of `path`."""
    with suppress(OSError):
        return any(is_alive(int(match[1])) for _, match in _temporary_names(path.resolve()))
    return False


def _temporary_names(path: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    """Yield the temporary files and folders that processes on this machine have created for `path`.

    Each is yielded with its match: group 1 is the process id, and group 2 is ".old" or None.
    """
    name = re.compile(rf"\.{re.escape(path.name)}\.{re.escape(_host())}-(\d+)-\d+\.new(\.old)?")
    for sibling in path.parent.iterdir():
        if match := name.fullmatch(sibling.name):
            yield sibling, match


def _remove_stale(path: Path) -> None:
    """Remove the temporary files and folders for `path` of processes on this machine that have ended.

    A folder that `swap_folders` had moved aside is moved back if `path` does not exist.
    """
    for sibling, match in _temporary_names(path):
        if not is_alive(int(match[1])):
            if match[2] and not path.exists():
                _rename(sibling, path)
            elif sibling.is_dir():
                shutil.rmtree(sibling, ignore_errors=True)
            else:
                sibling.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the system and the file system support that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

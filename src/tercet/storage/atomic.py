"""Files and folders that are whole or not there: written beside their place under another name, then renamed into it.

A rename inside a folder happens at once or not at all, so a reader, and a process killed at any moment, leave the old
file or the new one, never half of either. A folder that is there already changes places with the new one, at once too
where the system can exchange two names (Linux, macOS). What a killed process left behind goes at the next write.
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
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from tercet.config import UserError

DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
RENAME_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
AT_FDCWD = -100  # AT_FDCWD: paths as they are

_writes = itertools.count()  # of this process, each under a name of its own


def write_atomically(path: Path | str, data: bytes | Callable[[BinaryIO], None]) -> None:
    """Write `path` whole, or leave it as it was.

    Args:
        path: in a folder that exists.
        data: the bytes, or a function that writes them to the open file it is given.

    Raises:
        UserError: If the disk is full, or the file system refuses, whatever `data` makes of that.
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
                os.fsync(file.fileno())  # the bytes before the name: a power cut must not keep the name alone
            os.replace(new, path)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


@contextmanager
def replace_folder(
    path: Path, *, keep: Callable[[Path], bool] = lambda entry: False, index: str | None = None
) -> Generator[Path]:
    """Write a new folder, whose entries take the place of those in `path` at the end.

    If nothing in `path` is to be kept, the two folders change places at once: a reader, and a process killed at any
    moment, leave the old folder or the new one. What is kept never moves, so that another program's open file and its
    path stay valid; then the other entries are moved one by one: out with the old `index`, in with the new one, out
    with the other old ones, in with the other new ones. A process killed in between leaves a folder in which `index`,
    which lists the others, shows that some are missing; writing again completes it.

    The folder and each file that is replaced keep their owner and mode, as far as the user may set them. After an
    error all is as it was.

    Args:
        path: Folder to write. Missing folders above it are made.
        keep: Whether an entry of the old folder stays, by its path; a file makes way for a new one of its name.
        index: Name of the new file by which readers notice that others are missing.

    Raises:
        OSError: If the disk is full, the file system refuses, or a kept folder has the name of a new file.
    """
    path = path.resolve()
    missing = [folder for folder in path.parents if not folder.exists()]
    new = _temporary_path(path)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # a file, where a folder is needed
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        _remove_stale(path)
        new.mkdir()
        yield new
        _sync_folder(new)
        if not path.is_dir():
            os.replace(new, path)
        else:
            old = list(path.iterdir())
            for entry in old:
                _copy_owner_and_mode(entry, new / entry.name)
            # An empty folder has nothing to lose, and a shell that stands in it still does.
            if old and not any(map(keep, old)) and _copy_owner_and_mode(path, new):
                swap_folders(new, path)
                for entry in filter(keep, new.iterdir()):  # another program made it meanwhile
                    os.replace(entry, path / entry.name)
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
    """Move the entries of `new` into `path` and `old` ones out of it; after an error all is as it was."""
    entries, aside = sorted(new.iterdir()), new / ".old"
    old = sorted({*old, *(path / entry.name for entry in entries if os.path.lexists(path / entry.name))})
    for entry in old:
        if (new / entry.name).is_file() and entry.is_dir() and not entry.is_symlink():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(entry))
    out = [(entry, aside / entry.name) for entry in old]
    into = [(entry, path / entry.name) for entry in entries]
    moves = [*out, *into]
    moves.sort(key=lambda move: move[0].name != index)  # the others keep their order
    aside.mkdir()
    completed: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            os.replace(source, target)
            completed.append((source, target))
    except BaseException:
        for source, target in reversed(completed):
            os.replace(target, source)
        raise
    _sync_folder(path)


def _copy_owner_and_mode(old: Path, new: Path) -> bool:
    """Give a new file or folder the owner and mode of the old one; return whether it has them.

    There is nothing to copy to an entry of another kind, or to one that does not exist.
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
    """Each gets the other's name: at once where the system can, else with a moment in which `second` is not there."""
    if not _exchange(os.fsencode(first), os.fsencode(second)):
        aside = first.with_name(f"{first.name}.old")  # `_remove_stale` puts it back after a kill in between
        os.replace(second, aside)
        os.replace(first, second)
        os.replace(aside, first)


@contextmanager
def report_write_errors(path: Path) -> Generator[None]:
    """What the file system refuses is told as an error of the user's, with `path`."""
    try:
        yield
    except OSError as error:
        raise write_failure(path, error) from None


def write_failure(path: Path, error: OSError) -> UserError:
    """Why `path` could not be written, in words for the user."""
    if error.errno in DISK_FULL_ERRORS:
        return UserError(f"disk full while writing {path}; free some space, or choose another folder")
    return UserError(f"cannot write {path}: {error.strerror or error}; choose another folder")


class _RawFile(io.FileIO):
    """A file that keeps the first error of a write."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = self.failure or error
            raise


@contextmanager
def _open_to_write(path: Path) -> Generator[BinaryIO]:
    """Open a new file. Raises the OSError of a failed write also if its writer raises something else instead.

    PyTorch's archive writer, for one, ends with "unexpected pos 576 vs 466" if the disk is full.
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
    """Whether the system has exchanged the two names."""
    try:
        libc = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return libc.renamex_np(first, second, RENAME_EXCHANGE) == 0
        return libc.renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE) == 0
    except (OSError, AttributeError, TypeError):
        return False


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{next(_writes)}.new")


def _host() -> str:
    """This machine's name, where many share a file system: a process number means nothing on another."""
    return re.sub(r"[^\w]", "_", socket.gethostname())[:40]


def is_being_written(path: Path) -> bool:
    """Return whether a process on this machine is about to replace `path`, or is doing so."""
    with suppress(OSError):
        return any(_alive(int(match[1])) for _, match in _temporary_names(path.resolve()))
    return False


def _temporary_names(path: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    """Yield what writers of `path` on this machine have beside it, each with the match of its process and suffix."""
    name = re.compile(rf"\.{re.escape(path.name)}\.{re.escape(_host())}-(\d+)-\d+\.new(\.old)?")
    for sibling in path.parent.iterdir():
        if match := name.fullmatch(sibling.name):
            yield sibling, match


def _remove_stale(path: Path) -> None:
    """Remove what writers of `path` on this machine that are no longer alive have left."""
    for sibling, match in _temporary_names(path):
        if not _alive(int(match[1])):
            if match[2] and not path.exists():
                os.replace(sibling, path)
            elif sibling.is_dir():
                shutil.rmtree(sibling, ignore_errors=True)
            else:
                sibling.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # alive, and someone else's
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Put the new name itself on the disk; some systems and file systems cannot, and then it comes later."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

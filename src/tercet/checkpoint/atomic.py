"""Files that are whole or not there: written beside their place under another name, then renamed into it.

A rename inside a folder happens at once or not at all, so a reader, and a process killed at any moment, leave the old
file or the new one, never half of either. What a killed process left behind goes at the next write of the same file.
"""

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tercet.config import UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_atomically(path: Path | str, data: bytes | Callable[[BinaryIO], None]) -> None:
    """Write `path` whole, or leave it as it was.

    Args:
        path: in a folder that exists.
        data: the bytes, or a function that writes them to the open file it is given.

    Raises:
        UserError: where the disk is full, or the file system refuses.
    """
    path = Path(path)
    try:
        _remove_stale(path)
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
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
    except OSError as error:
        raise refusal(path, error) from None


def refusal(path: Path, error: OSError) -> UserError:
    """Why `path` could not be written, in words for the user."""
    if error.errno in FULL:
        return UserError(f"disk full while writing {path}; make room, or choose another folder")
    return UserError(f"cannot write {path}: {error.strerror or error}; choose another folder")


def _remove_stale(path: Path) -> None:
    """Remove what writers of this file that are no longer alive have left."""
    name = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.new")
    for other in path.parent.iterdir():
        if (match := name.fullmatch(other.name)) and not _alive(int(match[1])):
            other.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    if pid == os.getpid():
        return False  # we write one file at a time
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

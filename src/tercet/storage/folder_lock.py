"""Locks of folders, in which only one process at a time may write, and of work that is done only once.

Readers need no lock, since files are replaced atomically.
"""

import json
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tercet.config import UserError
from tercet.reading.files import check_links
from tercet.storage.atomic import write_atomically, write_failure

LOCK, OWNER = ".lock", ".owner.json"
MAX_WAIT = 300.0  # maximum seconds that `lock_file` waits, for example for the download of another process


class FolderInUse(UserError):
    """Another process has locked the folder."""


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Lock an existing folder within the context, without waiting.

    The lock is that of the file system (flock). The system releases it when the process ends, even if it is killed. It
    also works between machines over NFS if their kernels support it, as Linux does since 2.6.12. On a file system
    without flock, the existence of the lock file is the lock, and the file may remain after a process was killed.

    Raises:
        FolderInUse: If another process has the lock. The message contains its process id and machine, if known.
        UserError: If the folder cannot be written, or `check_links` rejects it.
    """
    from filelock import FileLock, Timeout  # imported late, since most commands lock nothing

    check_links(folder)  # the lock file is opened for writing, and must not be a link to another place
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUse(
            f"{folder} is in use by {_read_owner(folder)}; stop it first, or choose another folder"
        ) from None
    except OSError as error:
        raise write_failure(folder / LOCK, error) from None
    try:
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        write_atomically(folder / OWNER, json.dumps(owner).encode())
        yield
    finally:
        with suppress(OSError):
            (folder / OWNER).unlink(missing_ok=True)
        lock.release()


@contextmanager
def lock_file(path: Path) -> Generator[None]:
    """Wait for a lock, and hold it within the context, so that threads and processes do not repeat work.

    After `MAX_WAIT` seconds, the context is entered without the lock: on a file system without flock, a killed process
    may have left it. The lock only saves work, and correctness must not depend on it.

    Args:
        path: Path of the lock file, which is created.

    Raises:
        UserError: If the lock file cannot be written.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=MAX_WAIT, poll_interval=0.01)
    try:
        with suppress(Timeout):
            lock.acquire()
    except OSError as error:
        raise write_failure(path, error) from None
    try:
        yield
    finally:
        lock.release()


def _read_owner(folder: Path) -> str:
    """Describe the process that has locked a folder, as a part of an error message.

    The file of the owner may be missing, since it is written after the folder is locked.
    """
    try:
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
        return f"process {int(owner['pid'])} on {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"

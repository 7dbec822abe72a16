"""Locks: only one process at a time trains into a folder.

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
MAX_WAIT = 300.0  # seconds to wait for another owner, such as a download


class FolderInUse(UserError):
    """Another process owns the folder."""


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Lock an existing folder, without waiting.

    The lock is that of the file system (flock). It ends with its process, however that ends, and also works between
    machines over NFS if their kernels support it, as Linux does since 2.6.12. Without flock, the existence of the file
    is the lock.

    Raises:
        FolderInUse: If another process has the lock, with its machine and process id.
        UserError: If the folder cannot be written, or a link leads out of it.
    """
    from filelock import FileLock, Timeout  # imported late, since only training needs it

    check_links(folder)  # a lock file is opened for writing
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
    """Wait for the lock of a file, for work that other threads and processes should not repeat.

    The wait is bounded, since on a file system without flock an owner may have ended with the lock. The lock only saves
    work; correctness must not depend on it.

    Raises:
        UserError: If the file cannot be written.
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
    """Return a description of the owner. If the file does not exist, the owner is just writing it."""
    try:
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
        return f"process {int(owner['pid'])} on {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"

"""A folder has one owner at a time: who trains into it. Readers need no lock, for what they read is replaced whole."""

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
MAX_WAIT = 300.0  # seconds for the work of another owner, such as fetching a file


class FolderInUse(UserError):
    """Another process owns the folder."""


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """Own `folder`, which exists, or be told at once who does.

    The lock is the file system's (flock): it ends with its process, however that dies, and holds between machines over
    NFS where their kernels pass it on, as Linux does since 2.6.12. Where there is none, that the file exists is it.

    Raises:
        FolderInUse: with the owner's machine and process.
        UserError: where nothing can be written there, or a link leads out of the folder.
    """
    from filelock import FileLock, Timeout  # once there is something to own

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
    """Wait for a lock file, and own it, for work that another thread or process should not do at the same time.

    The wait is bounded: an owner on a file system without flock may have died with the lock. So this saves work, and
    nothing may depend on it.

    Raises:
        UserError: If nothing can be written there.
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
    """Who that is, in words: it is still writing its name where the file is not there."""
    try:
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
        return f"process {int(owner['pid'])} on {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"

"""Read whole files of a model or run folder: regular files of bounded size, and no links out of the folder."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from tercet.config import UserError
from tercet.limits import FOLDER_ENTRIES
from tercet.messages import shorten

# Remedies for errors that another copy of the file does not correct.
REMEDIES = {
    errno.ENOENT: "check the path or copy the file there",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "pass a file",
    errno.ELOOP: "check the path",
    errno.ENAMETOOLONG: "check the path",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs",
    errno.ENOMEM: "close other programs",
}
WANDB = "wandb"  # folder of Weights & Biases, which contains links to log files elsewhere


def check_regular_file(path: Path, max_bytes: int | None = None) -> None:
    """Check that a path is a regular file, before a library opens it.

    Opening a pipe would block, and reading a device may never end.

    Args:
        path: The file.
        max_bytes: Maximum size of the file; None for no limit.

    Raises:
        UserError: If it is missing, not a regular file, or larger than `max_bytes`.
    """
    try:
        _check_status(path, os.stat(path), max_bytes)
    except (OSError, ValueError) as error:
        raise read_error(path, error) from None


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file.

    Raises:
        UserError: If `check_regular_file` would reject the file, or it cannot be read.
    """
    with open_whole_file(path, max_bytes) as file:
        try:
            return file.read(os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise read_error(path, error) from None


def open_whole_file(path: Path, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file for reading; the caller closes it.

    Raises:
        UserError: If `check_regular_file` would reject the file, or it cannot be opened.
    """
    try:
        file = open(path, "rb", opener=open_without_waiting)  # noqa: SIM115  # the caller closes it
    except (OSError, ValueError) as error:
        raise read_error(path, error) from None
    try:
        _check_status(path, os.fstat(file.fileno()), max_bytes)
    except BaseException:
        file.close()
        raise
    return file


def read_text_file(path: Path, max_bytes: int) -> str:
    """Return the text of a file, with its line ends unchanged and without a byte order mark.

    Raises:
        UserError: If `check_regular_file` would reject the file, it cannot be read, or it is not UTF-8.
    """
    try:
        return read_regular_file(path, max_bytes).decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise UserError(f"cannot read {path}: not UTF-8 text; copy it again") from None


def open_without_waiting(path: str, flags: int) -> int:
    """Open a path without blocking, even if it is a pipe without a writer; an `opener` for `open`.

    The caller can then check the type of the opened file.
    """
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def check_links(folder: Path, *, recursive: bool = False, root: Path | None = None) -> None:
    """Reject symbolic links out of a folder of a model or run, and pipes, sockets and devices in it.

    A folder may come from someone else. Through a link out of the folder, its author could cause another file of this
    machine to be read and published, or overwritten. Links within the folder are allowed, and so are links from a
    snapshot in a Hugging Face cache to the blobs of that cache. The path of `folder` itself may contain links. A folder
    that does not exist is not an error.

    Args:
        folder: Folder of a model or run.
        root: Folder that contains `folder`; links may lead into all of it (default: `folder`).
        recursive: If True, also check the folders below it except wandb folders, which Tercet does not read.

    Raises:
        UserError: If there is such a file, the folder cannot be read, or more than FOLDER_ENTRIES entries were found.
    """
    root = folder if root is None else root
    allowed = [root.resolve()]
    if root.parent.name == "snapshots":  # in a cache, files are links to ../../blobs, which all revisions share
        allowed.append(root.resolve().parent.parent / "blobs")
    folders, n_entries = [os.fspath(folder)], 0
    try:
        while folders:
            for entry in _scan(folders.pop()):
                n_entries += 1
                if n_entries > FOLDER_ENTRIES:
                    raise UserError(
                        f"{folder} has more than {FOLDER_ENTRIES:,} files; remove those that do not belong to a run"
                    )
                if entry.is_symlink():
                    target = Path(entry.path).resolve()
                    if not any(target.is_relative_to(place) for place in allowed):
                        raise UserError(
                            f"{entry.path} is a link out of its folder; put a copy of its target in its place, or "
                            "remove it"
                        )
                elif entry.is_dir():
                    if recursive and entry.name != WANDB:
                        folders.append(entry.path)
                elif not entry.is_file() and os.path.lexists(entry.path):  # otherwise it has been removed
                    raise UserError(f"{entry.path} is not a regular file; remove it")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise read_error(folder, error) from None


def _scan(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none if it does not exist, as a training process may be replacing it."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _check_status(path: Path, status: os.stat_result, max_bytes: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"cannot read {path}: not a regular file; replace it with the file itself")
    if max_bytes is not None and status.st_size > max_bytes:
        raise UserError(
            f"cannot read {path}: it has {status.st_size} bytes, more than the allowed {max_bytes}; copy it again"
        )


def read_error(path: Path, error: OSError | ValueError | RuntimeError) -> UserError:
    """Return a UserError which reports that `path` cannot be read because of `error`, with a remedy that fits it."""
    reason = getattr(error, "strerror", None) or shorten(error)
    # An error without a number is about the path itself: it contains a NUL, or a loop of links.
    remedy = REMEDIES.get(error.errno or 0, "copy it again") if isinstance(error, OSError) else "check the path"
    return UserError(f"cannot read {path}: {reason}; {remedy}")

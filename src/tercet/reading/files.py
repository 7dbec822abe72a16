"""Whole files of a model folder: regular ones, bounded in bytes, and no links out of the folder."""

import os
import stat
from pathlib import Path

from tercet.config import UserError
from tercet.messages import shorten


def check_regular_file(path: Path, most: int | None = None) -> None:
    """For a file that a library is about to open: no pipe or device, which it would wait for or read without end.

    Raises:
        UserError: where it is missing, of another kind, or has more than `most` bytes.
    """
    try:
        _check_status(path, os.stat(path), most)
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from None


def read_regular_file(path: Path, most: int) -> bytes:
    """A file's bytes.

    Raises:
        UserError: as `check_regular_file`.
    """
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            _check_status(path, status, most)
            return file.read(status.st_size)
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from None


def read_text_file(path: Path, most: int) -> str:
    """A file's text, line ends as they are. Raises UserError as `check_regular_file`, or where it is not UTF-8."""
    try:
        return read_regular_file(path, most).decode()
    except UnicodeDecodeError:
        raise UserError(f"cannot read {path}: it is not UTF-8 text; copy it again") from None


def open_without_waiting(path: str, flags: int) -> int:
    """For `open`: a pipe that nobody writes to opens at once, so that it can be refused."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def check_links(folder: Path) -> None:
    """Symbolic links in a model folder stay inside it, or are those of a Hugging Face cache.

    A folder may have come with its links, as from a repository: one to another place would give whoever made it a
    file of this machine to be read, and to be published by a conversion.

    Raises:
        UserError: for a link that leads elsewhere.
    """
    inside = [folder.resolve()]
    if folder.parent.name == "snapshots":  # of a cache: files are links to ../../blobs, which all revisions share
        inside.append(folder.resolve().parent.parent / "blobs")
    try:
        links = [entry.path for entry in os.scandir(folder) if entry.is_symlink()]
        for path in links:
            target = Path(path).resolve()
            if not any(target.is_relative_to(place) for place in inside):
                raise UserError(f"{path} is a link out of its folder; put a copy of the file in its place")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise _refusal(folder, error) from None


def _check_status(path: Path, status: os.stat_result, most: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"cannot read {path}: it is no regular file; put the file itself there")
    if most is not None and status.st_size > most:
        raise UserError(f"cannot read {path}: it has {status.st_size} bytes, and may have {most}; copy it again")


def _refusal(path: Path, error: OSError | ValueError | RuntimeError) -> UserError:
    reason = getattr(error, "strerror", None) or shorten(error)
    return UserError(f"cannot read {path}: {reason}; copy it again")

"""Checks of a file or folder to write, before the work whose result it receives."""

import os
from collections.abc import Iterable
from pathlib import Path

from tercet.config import UserError


def check_output_file(path: Path, flag: str, *, example: str, inputs: Iterable[Path | str | None] = ()) -> None:
    """Check that `write_atomically` can write a file.

    Args:
        path: File to write.
        flag: Option that sets `path`, for the error message.
        example: Name of a file, for the error message if `path` is a folder.
        inputs: Files that the same command reads, which it must not replace. None stands for an input that is not set.

    Raises:
        UserError: If `path` is a folder, a device or a pipe, its folder does not exist or is not writable, or `path` is
            one of the inputs.
    """
    if path.is_dir():
        raise UserError(f"{flag} {path} is a folder; pass a file name, such as {path / example}")
    if not path.parent.is_dir():
        raise UserError(f"{flag} {path}: no such folder: {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"{flag} {path}: the folder {path.parent} is not writable; choose another folder")
    if not path.exists():
        return
    if not path.is_file():
        raise UserError(f"{flag} {path} is not a regular file; pass the name of a new file")
    for name in inputs:
        if name is not None and os.path.exists(name) and path.samefile(name):
            raise UserError(f"{flag} {path} is also an input of this command; choose another file")


def check_output_folder(folder: Path, flag: str) -> None:
    """Check that a folder can be created, or that files can be written to it if it exists. Nothing is created.

    Args:
        folder: Folder to write.
        flag: Option that sets `folder`, for the error message.

    Raises:
        UserError: If the folder, or the nearest one above it that exists, is a file or is not writable.
    """
    if folder.is_file():
        raise UserError(f"{flag} {folder} is a file; pass a folder")
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.exists(place))
    if not existing.is_dir():
        raise UserError(f"cannot create the folder {folder}: {existing} is not a folder; pass another {flag}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to the folder {folder}: {existing} is not writable; pass another {flag}")

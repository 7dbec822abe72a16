"""Check of a file to write before the work whose result it receives."""

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

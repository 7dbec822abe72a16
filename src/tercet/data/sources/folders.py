"""The files below a folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from tercet import limits
from tercet.config import UserError


def walk_folder(root: Path) -> Iterator[Path]:
    """Yield the entries below a folder that are not folders, in no particular order.

    Linked folders are followed, each folder once. Hidden files and folders are left out.

    Raises:
        UserError: If there are more than `limits.FOLDER_ENTRIES`.
    """
    entries, visited = 0, set[tuple[int, int]]()  # a link may lead to a parent folder
    for folder, folders, names in os.walk(root, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        entries += len(folders) + len(names)
        if entries > limits.FOLDER_ENTRIES:
            raise UserError(
                f"the folder {root} contains more than {limits.FOLDER_ENTRIES:,} files and folders; "
                "use a folder that contains only the texts"
            )
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in names if not name.startswith("."))

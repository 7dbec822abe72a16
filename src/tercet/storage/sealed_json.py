"""JSON that knows when it was changed: an object whose last key, `checksum`, is the hash of all others."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from tercet.config import UserError
from tercet.storage.atomic import write_atomically

CHECKSUM = "checksum"


class DamagedFile(UserError):
    """A file is not what was written."""


def write_sealed_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write `data` atomically, with its checksum.

    Raises:
        UserError: as `write_atomically`.
    """
    sealed = {**data, CHECKSUM: _checksum(data)}
    write_atomically(path, (json.dumps(sealed, indent=2, ensure_ascii=False) + "\n").encode())


def read_sealed_json(path: Path, *, since: str | None = None) -> dict[str, Any]:
    """The object in a file, without its checksum.

    Args:
        since: a key that came with the checksum; a file without both was written before there were any, and is taken as
            it is.

    Raises:
        DamagedFile: where the file can't be read, or was changed since it was written.
    """
    data: Any = None
    with suppress(ValueError, RecursionError):
        try:
            if not path.is_file():  # a pipe or a device would be read for ever
                raise DamagedFile(f"{path} is no file; put back the file that was written")
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DamagedFile(f"cannot read {path}: {error.strerror or error}") from None
    if not isinstance(data, dict):
        data = {CHECKSUM: None}
    if since is not None and since not in data and CHECKSUM not in data:
        return data
    if data.pop(CHECKSUM, None) != _checksum(data):
        raise DamagedFile(f"{path} is damaged; put back the file that was written")
    return data


def _checksum(data: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(data, sort_keys=True, ensure_ascii=False).encode())

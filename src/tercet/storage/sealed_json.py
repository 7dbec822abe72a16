"""JSON that knows when it was changed: an object whose last key, `checksum`, is the hash of all others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from tercet.config import UserError
from tercet.limits import MAX_SETTINGS_BYTES
from tercet.reading.bounded_json import parse_json
from tercet.reading.files import read_regular_file
from tercet.storage.atomic import write_atomically

CHECKSUM = "checksum"


class DamagedFile(UserError):
    """A file is not what was written."""


def write_sealed_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write `data` atomically, with its checksum.

    Raises:
        UserError: as `write_atomically`.
    """
    with_checksum = {**data, CHECKSUM: _checksum(data)}
    write_atomically(path, (json.dumps(with_checksum, indent=2, ensure_ascii=False) + "\n").encode())


def read_sealed_json(path: Path, *, since: str | None = None) -> dict[str, Any]:
    """The object in a file, without its checksum.

    Args:
        since: a key that came with the checksum; a file without both was written before there were any, and is taken as
            it is.

    Raises:
        DamagedFile: where the file can't be read, or was changed since it was written.
    """
    data: Any = None
    try:
        data = parse_json(read_regular_file(path, MAX_SETTINGS_BYTES))
    except UserError as error:
        raise DamagedFile(str(error)) from None
    except ValueError:
        pass
    if not isinstance(data, dict):
        data = {CHECKSUM: None}
    if since is not None and since not in data and CHECKSUM not in data:
        return data
    if data.pop(CHECKSUM, None) != _checksum(data):
        raise DamagedFile(f"{path} is damaged; restore the original file")
    return data


def _checksum(data: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(data, sort_keys=True, ensure_ascii=False).encode())

"""JSON with a checksum: an object whose last key, `checksum`, is the hash of all others."""

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
    """A file is damaged, missing or cannot be read."""


def write_sealed_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write `data` atomically, with its checksum.

    Raises:
        UserError: If `write_atomically` fails.
    """
    with_checksum = {**data, CHECKSUM: _checksum(data)}
    write_atomically(path, (json.dumps(with_checksum, indent=2, ensure_ascii=False) + "\n").encode())


def read_sealed_json(path: Path, *, since: str | None = None) -> dict[str, Any]:
    """Return the object in a file, without its checksum.

    Args:
        path: Path of the file.
        since: Key that was introduced together with the checksum. A file that contains neither is older, and its object
            is returned unchecked. If None, the checksum is required.

    Raises:
        DamagedFile: If the file cannot be read, contains no JSON object, or does not match its checksum.
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

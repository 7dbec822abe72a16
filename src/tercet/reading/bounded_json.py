"""Read untrusted JSON: bounded size and depth, integers of bounded length, unique keys and finite numbers."""

import json
import math
from pathlib import Path
from typing import Any, cast

from tercet.config import UserError
from tercet.limits import MAX_DIGITS, MAX_HEADER_BYTES, MAX_JSON_DEPTH, MAX_SETTINGS_BYTES
from tercet.messages import shorten
from tercet.reading.files import read_regular_file

_TOO_DEEP = f"nested more than {MAX_JSON_DEPTH} levels deep"


def read_json_file(path: Path, max_bytes: int = MAX_SETTINGS_BYTES) -> dict[str, Any]:
    """Return the top-level object of a JSON file.

    Args:
        path: The file.
        max_bytes: Maximum size of the file.

    Raises:
        UserError: If `check_regular_file` rejects the file or `parse_json` its content, or if the top level is not an
            object.
    """
    data = read_regular_file(path, max_bytes)
    try:
        structure = parse_json(data)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({shorten(error)}); restore the saved file") from None
    if not isinstance(structure, dict):
        raise UserError(f"{path}: expected a JSON object at the top level; restore the saved file")
    return cast("dict[str, Any]", structure)


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text; bytes must be UTF-8.

    Raises:
        ValueError: If `text` is not valid JSON, is nested more than MAX_JSON_DEPTH levels deep, or contains an integer
            of more than MAX_DIGITS digits, a number that is not finite, or a duplicate key.
    """
    try:
        structure = json.loads(
            text if isinstance(text, str) else text.decode(),
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_reject_constant,
            object_pairs_hook=_make_object,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [structure]
    for _ in range(MAX_JSON_DEPTH):
        level = [item for container in level for item in _items(container) if isinstance(item, dict | list)]
        if not level:
            return structure
    raise ValueError(_TOO_DEEP)


def check_header(path: Path) -> None:
    """Check the header of a safetensors file.

    Raises:
        ValueError: If the header is longer than MAX_HEADER_BYTES, or `parse_json` rejects it.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes, more than the allowed {MAX_HEADER_BYTES}")
        parse_json(file.read(length))


def _items(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container if isinstance(container, list) else ()


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set[str]()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"duplicate key {shorten(repr(repeated))}")
    return result


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, more than the allowed {MAX_DIGITS}")
    return int(digits)


def _parse_float(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"the number {shorten(digits, MAX_DIGITS)} is too large")
    return number


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")

"""Files from third parties: text in blocks, lines, and objects of JSONL, read as streams.

Sizes are bounded by `limits`, and each error is reported in one line.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Literal, cast

from tercet import limits
from tercet.config import UserError, suggest
from tercet.data.sources.formats import encoding_of_mark, is_gzip
from tercet.messages import shorten
from tercet.reading.text_files import check_unpacked, open_regular_file

BLOCK = 1 << 20  # bytes read at a time
_BETWEEN_ITEMS = re.compile(r"[\s,]*")
Errors = Literal["strict", "replace"]  # bytes that are invalid in the encoding are rejected, or become U+FFFD


@contextmanager
def open_file(path: Path) -> Generator[IO[bytes]]:
    """Open a file in binary mode, and unpack it if it is `.gz`.

    Raises:
        UserError: If the file cannot be read, is damaged, or is a small file that unpacks to a huge one.
    """
    with report_file_errors(path), open_regular_file(path) as file:
        if not is_gzip(path):
            yield file
            return
        with _BoundedGzipFile(path, file) as gzip_file:
            yield cast(IO[bytes], gzip_file)


class _BoundedGzipFile(gzip.GzipFile):
    def __init__(self, path: Path, file: IO[bytes]) -> None:
        super().__init__(fileobj=file)
        self._path, self._packed_bytes = path, path.stat().st_size

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        check_unpacked(self._path, self._packed_bytes, self.tell())
        return data


@contextmanager
def report_file_errors(path: Path) -> Generator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is a damaged gzip file ({error}); copy it again, or unpack its intact part") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check the file and its permissions") from None


def read_text(path: Path, encoding: str, errors: Errors = "strict") -> Iterator[str]:
    """Yield the text of a file in blocks, with unchanged newlines and without a byte-order mark.

    A file that begins with the mark of UTF-16 or UTF-32 has this encoding, even if `encoding` is UTF-8. With `errors`
    "replace", invalid bytes become U+FFFD.

    Raises:
        UserError: If `open_file` raises it, or the file is not text in this encoding.
    """
    start = 0  # offset of the current block
    with open_file(path) as file:
        block = file.read(BLOCK)
        decoder = codecs.getincrementaldecoder(encoding_of_mark(block, encoding))(errors)
        while True:
            n_undecoded = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
                text.encode()  # some codecs decode half a surrogate pair
            except UnicodeError as error:
                position = start - n_undecoded + error.start if isinstance(error, UnicodeDecodeError) else start
                raise UserError(
                    f"{path} is not {encoding} text: byte {position} cannot be read; "
                    "set data.encoding (--encoding) to the encoding of the file, such as latin-1, cp1252 or utf-16"
                ) from None
            yield text.removeprefix("\ufeff") if start == 0 else text
            if not block:
                return
            start += len(block)
            block = file.read(BLOCK)


def read_lines(path: Path, encoding: str, errors: Errors = "strict") -> Iterator[str]:
    """Yield the lines of a file, which end only at "\\n", without this end. A last line that is empty is not yielded.

    Raises:
        UserError: If `read_text` raises it, or a line is longer than `limits.LINE_CHARACTERS`.
    """
    number, parts, length = 1, list[str](), 0  # of the current line
    for block in read_text(path, encoding, errors):
        first, *rest = block.split("\n")
        parts.append(first)
        length += len(first)
        if length > limits.LINE_CHARACTERS:
            raise UserError(
                f"{path} line {number} has more than {limits.LINE_CHARACTERS:,} characters; insert newlines to split it"
            )
        if rest:
            yield "".join(parts)
            yield from rest[:-1]
            number, parts, length = number + len(rest), rest[-1:], len(rest[-1])
    if length:
        yield "".join(parts)


def read_objects(
    path: Path, encoding: str, errors: Errors, fields: Sequence[str]
) -> Iterator[tuple[str, dict[str, object]]]:
    """Return an iterator over the location and value of each object of a JSONL file or a JSON array.

    Args:
        path: Path of the file.
        encoding: Encoding of the file.
        errors: As in `read_text`.
        fields: Fields that each object should have, for messages. They are not checked.

    Raises:
        UserError: If `read_lines` raises it, or the file contains something other than JSON objects.
    """
    if next(read_text(path, encoding, errors)).lstrip().startswith("["):  # a line of JSONL with an object starts with {
        return _read_array(read_text(path, encoding, errors), path, fields)
    return objects_of_lines(read_lines(path, encoding, errors), str(path), fields)


def is_json_array(path: Path) -> bool:
    """Return True if a JSON file starts like an array, and False otherwise, also if it cannot be read."""
    try:
        with open_file(path) as file:
            return file.read(BLOCK).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
    except UserError:
        return False


def objects_of_lines(lines: Iterable[str], name: str, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the location and value of the JSON object on each nonempty line.

    Args:
        lines: Lines of the file.
        name: Name of the file in locations.
        fields: Fields that each object should have, for messages.

    Raises:
        UserError: If a line is not a JSON object.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            location = f"{name} line {number}"
            yield location, parse_object(line, location, fields)


def _read_array(blocks: Iterator[str], path: Path, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the location and value of each object of a JSON array, with bounded memory."""
    decoder, number, text = json.JSONDecoder(), 0, next(blocks)
    position = text.index("[") + 1
    while True:
        separator = _BETWEEN_ITEMS.match(text, position)
        position = position if separator is None else separator.end()
        if text[position : position + 1] == "]":
            break
        location = f"{path} item {number + 1}"
        try:
            row, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            # The object may continue in the next block.
            next_block = next(blocks, "") if isinstance(error, json.JSONDecodeError) else ""
            if not next_block or len(text) - position > limits.LINE_CHARACTERS:
                raise _not_json_error(error, location, "the array must contain objects") from None
            text, position = text[position:] + next_block, 0
            continue
        number += 1
        yield location, _check_object(row, location, fields)
    if text[position + 1 :].strip() or any(map(str.strip, blocks)):
        raise UserError(f"{path} has text after the end of its array; write one array, or one object per line")


def parse_object(line: str, location: str, fields: Sequence[str]) -> dict[str, object]:
    """Return the JSON object in a line.

    Args:
        line: The line.
        location: Location of the line in messages.
        fields: Fields that the object should have, for messages. They are not checked.

    Raises:
        UserError: If the line is not a JSON object.
    """
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _not_json_error(error, location, "each line must contain one object") from None
    return _check_object(row, location, fields)


def _not_json_error(error: Exception, location: str, remedy: str) -> UserError:
    if isinstance(error, json.JSONDecodeError):
        reason = error.msg
    else:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
    return UserError(f"{location} is not JSON ({reason}); {remedy}")


def _check_object(row: object, location: str, fields: Sequence[str]) -> dict[str, object]:
    if not isinstance(row, dict):
        example = ", ".join(f"{json.dumps(field)}: ..." for field in fields)
        position = "on each line" if " line " in location else "for each item"
        raise UserError(f"{location} is not a JSON object; write {{{example}}} {position}")
    return cast(dict[str, object], row)


def get_text(values: dict[str, object], field: str, location: str, setting: str) -> str:
    """Return the text of a field.

    Args:
        values: Object that has the field.
        field: Name of the field.
        location: Location of the object in messages.
        setting: Setting that names the field, for messages.

    Raises:
        UserError: If the field is missing or not text, or contains half of a surrogate pair.
    """
    check_field(values, field, location, setting)
    text = values[field]
    if not isinstance(text, str):
        raise UserError(f"{location}: the field {field!r} is not text; set {setting} to a text field")
    check_unicode(text, location)
    return text


def check_unicode(text: str, location: str, kind: str = "text") -> None:
    """Check that a text can be written as UTF-8.

    Raises:
        UserError: If it contains half of a surrogate pair, which JSON can express.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{location}: the {kind} has half a surrogate pair (\\ud800...); remove it") from None


def check_field(values: dict[str, object], field: str, location: str, setting: str) -> None:
    if field not in values:
        raise UserError(
            f"{location} has no field {field!r}{suggest_field(field, values)} (rename it, or set {setting})"
        )


def find_group(values: dict[str, object], field: str | None, location: str) -> str:
    """Return the group in a field, as `read_group`, or "" without a field.

    Raises:
        UserError: If there is no such field, or `read_group` raises it.
    """
    if field is None:
        return ""
    check_field(values, field, location, "data.group_field")
    return read_group(values[field], location, field)


def read_group(value: object, location: str, field: str) -> str:
    """Return a group, such as an author: text, or an integer or boolean as text.

    Args:
        value: Value of the field.
        location: Location of the value in messages.
        field: Name of the field in messages.

    Raises:
        UserError: If the value is something else or blank.
    """
    if isinstance(value, int):
        return json.dumps(value)
    if isinstance(value, str) and (group := value.strip()):
        check_unicode(group, location, "group")
        return group
    raise UserError(
        f"{location}: {shorten(repr(value), 40)} in {field!r} is not a group, which is text or an integer; write one, "
        "or set data.group_field to another field"
    )


def suggest_field(field: str, names: Iterable[str]) -> str:
    """Return the result of `suggest` for the first names, because a file may have thousands."""
    return suggest(field, [name for name in islice(names, 50) if len(name) <= 50], similar=0.75)


def suggest_path(path: Path) -> str:
    """Return the end of the message about a path that does not exist: the nearest name in its folder, if any."""
    if not path.parent.is_dir():
        return "; its folder does not exist either"
    names = [entry.name for entry in islice(path.parent.iterdir(), 1000) if not entry.name.startswith(".")]
    suggestion = suggest(path.name, names)
    return suggestion if suggestion.startswith("; did you mean") else f"; look in {path.parent.resolve()}"


def find_path(source: str) -> Path:
    """Return the path that `source` denotes, with `~` expanded to the home folder.

    Raises:
        UserError: If no file can have this path.
    """
    try:
        path = Path(source).expanduser()
        path.exists()  # raises if the name is too long or has invalid characters
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{source[:200]!r} cannot be the path of a file: {reason}; correct it") from None
    return path

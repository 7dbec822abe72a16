"""Files that someone else may have written: text in blocks, lines, and the objects of JSONL, never a file whole.

What is read is bounded by `limits`, and whatever is wrong with a file is told in one line.
"""

import codecs
import gzip
import json
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Literal, cast

from tercet import limits
from tercet.config import UserError, suggest
from tercet.reading.text_files import check_unpacked, open_regular_file

BLOCK = 1 << 20  # bytes read at a time
Errors = Literal["strict", "replace"]  # what is no text in an encoding is refused, or becomes U+FFFD


@contextmanager
def open_file(path: Path) -> Generator[IO[bytes]]:
    """The bytes of a file, unpacked where it is `.gz`.

    Raises:
        UserError: where it cannot be read, is broken, or is a small file that unpacks to a huge one.
    """
    with report_file_errors(path), open_regular_file(path) as file:
        if path.suffix != ".gz":
            yield file
            return
        with _Unpacked(path, file) as unpacked:
            yield cast(IO[bytes], unpacked)


class _Unpacked(gzip.GzipFile):
    def __init__(self, path: Path, file: IO[bytes]) -> None:
        super().__init__(fileobj=file)
        self._path, self._packed = path, path.stat().st_size

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        check_unpacked(self._path, self._packed, self.tell())
        return data


@contextmanager
def report_file_errors(path: Path) -> Generator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is a broken gzip file ({error}); copy it again, or unpack what is whole") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check the file and its permissions") from None


def read_text(path: Path, encoding: str, errors: Errors = "strict") -> Iterator[str]:
    """The text of a file in blocks, newlines as they are, without a byte-order mark.

    With `errors` "replace" U+FFFD stands for what is no text.

    Raises:
        UserError: where it is not text in this encoding, and as `open_file`.
    """
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    start = 0  # of the bytes that the decoder looks at next
    with open_file(path) as file:
        while True:
            block = file.read(BLOCK)
            n_undecoded = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
                text.encode()  # some encodings let half a surrogate pair through
            except UnicodeError as error:
                position = start - n_undecoded + error.start if isinstance(error, UnicodeDecodeError) else start
                raise UserError(
                    f"{path} is not {encoding} text: byte {position} cannot be read; "
                    "set data.encoding (--encoding) to the file's own, such as latin-1, cp1252 or utf-16"
                ) from None
            yield text.removeprefix("\ufeff") if start == 0 else text
            start += len(block)
            if not block:
                return


def read_lines(path: Path, encoding: str, errors: Errors = "strict") -> Iterator[str]:
    """The lines of a file, which end at "\n" alone; after the last of these there is none unless it has text.

    Raises:
        UserError: where a line is longer than `limits.LINE_CHARACTERS`, and as `read_text`.
    """
    number, parts, length = 1, list[str](), 0  # of the line that has not ended
    for block in read_text(path, encoding, errors):
        first, *others = block.split("\n")
        parts.append(first)
        length += len(first)
        if length > limits.LINE_CHARACTERS:
            raise UserError(
                f"{path} line {number} has more than {limits.LINE_CHARACTERS:,} characters; end it with a newline "
                "where it may be cut"
            )
        if others:
            yield "".join(parts)
            yield from others[:-1]
            number, parts, length = number + len(others), others[-1:], len(others[-1])
    if length:
        yield "".join(parts)


def read_json_objects(
    lines: Iterable[str], path: Path, fields: Sequence[str]
) -> Iterator[tuple[str, dict[str, object]]]:
    """The object on each of a JSONL file's lines, and where it stands; `fields` are those that it should have."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            location = f"{path} line {number}"
            yield location, parse_object(line, location, fields)


def parse_object(line: str, location: str, fields: Sequence[str]) -> dict[str, object]:
    """The JSON object that a line holds, which should have `fields`.

    Raises:
        UserError: where it is something else.
    """
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            reason = error.msg
        else:
            reason = "nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"
        raise UserError(f"{location} is not JSON ({reason}); each line must hold one object") from None
    if not isinstance(row, dict):
        example = ", ".join(f"{json.dumps(field)}: ..." for field in fields)
        raise UserError(f"{location} is not a JSON object; write {{{example}}} on each line")
    return cast(dict[str, object], row)


def get_text(values: dict[str, object], field: str, location: str, setting: str) -> str:
    """The text under the key `field`, which `setting` chose.

    Raises:
        UserError: where there is none.
    """
    check_field(values, field, location, setting)
    text = values[field]
    if not isinstance(text, str):
        raise UserError(f"{location}: the field {field!r} is not text; set {setting} to one that is")
    check_unicode(text, location)
    return text


def check_unicode(text: str, location: str, what: str = "text") -> None:
    """Check that a text can be written as UTF-8.

    Raises:
        UserError: If it has half of a surrogate pair, which JSON can spell.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{location}: the {what} has half a surrogate pair (\\ud800...); remove it") from None


def check_field(values: dict[str, object], field: str, location: str, setting: str) -> None:
    if field not in values:
        raise UserError(f"{location} has no field {field!r}{suggest_field(field, values)} (set {setting})")


def suggest_field(field: str, names: Iterable[str]) -> str:
    """As `suggest`, of names that a file may have thousands of."""
    return suggest(field, [name for name in islice(names, 50) if len(name) <= 50])


def uncompressed_suffix(path: Path) -> str:
    """That of the file before it was compressed."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def find_path(source: str) -> Path:
    """The path that a text means, `~` for the home folder.

    Raises:
        UserError: where no file could have it.
    """
    try:
        path = Path(source).expanduser()
        path.exists()  # raises where a name is too long, or holds what no name may
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{source[:200]!r} cannot be the path of a file: {reason}; correct it") from None
    return path

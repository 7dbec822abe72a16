"""Lines of bytes as text, and back: a line ends at "\\n" alone, so that as many come out as go in."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TypeVar

Item = TypeVar("Item")


def open_lines(path: Path, flag: str, files: ExitStack) -> Iterator[str]:
    """`read_lines` of the file that `flag` names; it is closed with `files`.

    Raises:
        UserError: where it cannot be read.
    """
    from tercet.config import UserError
    from tercet.reading.text_files import open_regular_file

    try:
        return read_lines(files.enter_context(open_regular_file(path)), str(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{flag} {path}: cannot read it: {getattr(error, 'strerror', None) or error}") from None


def read_lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Each line without its end; after the last "\\n" there is none unless it has text.

    Raises:
        UserError: where a line is not UTF-8, or is too long, with its number.
    """
    from tercet import limits
    from tercet.config import UserError

    for number, line in enumerate(iter(lambda: file.readline(limits.LINE_CHARACTERS + 1), b""), 1):
        whole = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(whole) > limits.LINE_CHARACTERS:
            raise UserError(f"{name} line {number} has more than {limits.LINE_CHARACTERS:,} bytes; cut it into lines")
        try:
            text = whole.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name} line {number} is not UTF-8 text (byte {error.start} of the line); convert it first"
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


def take_pool(items: Iterator[Item], lines: int, text: Callable[[Item], str]) -> list[Item]:
    """The next items, as many as `lines`, or fewer where their texts are long; none at the end."""
    from tercet import limits

    pool, characters = list[Item](), 0
    for item in items:
        pool.append(item)
        characters += len(text(item))
        if len(pool) >= lines or characters >= limits.POOL_CHARACTERS:
            break
    return pool


def replace_line_ends(text: str) -> str:
    """The text with spaces for the line ends in it, which some programs see in a carriage return as well."""
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")

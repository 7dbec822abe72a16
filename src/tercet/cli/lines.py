"""Lines of bytes as text: a line ends only at "\\n", so that the output has as many lines as the input."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TypeVar

Item = TypeVar("Item")


def open_lines(path: Path, flag: str, files: ExitStack) -> Iterator[str]:
    """Return `read_lines` of the file that `flag` names; it is closed with `files`.

    Raises:
        UserError: If it cannot be read.
    """
    from tercet.config import UserError
    from tercet.reading.text_files import open_regular_file

    try:
        return read_lines(files.enter_context(open_regular_file(path)), str(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{flag} {path}: cannot read it: {getattr(error, 'strerror', None) or error}") from None


def read_lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Yield each line without its line end; text after the last "\\n" counts as a line.

    Raises:
        UserError: If a line is not UTF-8 or is too long, with its number.
    """
    from tercet import limits
    from tercet.config import UserError

    for number, line in enumerate(iter(lambda: file.readline(limits.LINE_CHARACTERS + 1), b""), 1):
        whole = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(whole) > limits.LINE_CHARACTERS:
            raise UserError(f"{name} line {number} has more than {limits.LINE_CHARACTERS:,} bytes; split it into lines")
        try:
            text = whole.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name} line {number} is not UTF-8 text (byte {error.start} of the line); convert it first"
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


def take_pool(items: Iterator[Item], lines: int, text: Callable[[Item], str]) -> list[Item]:
    """Return the next `lines` items, or fewer if their texts are long; an empty list at the end."""
    from tercet import limits

    pool, characters = list[Item](), 0
    for item in items:
        pool.append(item)
        characters += len(text(item))
        if len(pool) >= lines or characters >= limits.POOL_CHARACTERS:
            break
    return pool


def replace_line_ends(text: str) -> str:
    """Return the text with spaces instead of line ends; some programs also treat a carriage return as one."""
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")

"""Lines of bytes as text, and back: a line ends at "\\n" alone, so that as many come out as go in."""

from collections.abc import Iterator
from typing import IO


def read_lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Each line without its end; after the last "\\n" there is none unless it has text.

    Raises:
        UserError: where a line is not UTF-8, with its number.
    """
    from tercet.config import UserError

    for number, line in enumerate(file, 1):
        whole = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            text = whole.decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name} line {number} is not UTF-8 text (byte {error.start} of the line); convert it first"
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text


def one_line(text: str) -> str:
    """The text without line ends in it, which some programs see in a carriage return as well."""
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")

"""Reading and writing of lines: a line ends only at "\\n", so that the output has as many lines as the input."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO


def open_lines(path: Path, flag: str, files: ExitStack) -> Iterator[str]:
    """Open a file, which may be compressed as `.gz`, and return its lines, as `read_lines` yields them.

    Args:
        path: Path of the file.
        flag: Flag with the path, for messages.
        files: Stack that closes the file.

    Raises:
        UserError: If the file cannot be opened.
    """
    from tercet.config import UserError
    from tercet.reading.text_files import open_regular_file

    if path.suffix.lower() == ".gz" and path.is_file():
        from tercet.data.sources.files import open_file

        return read_lines(files.enter_context(open_file(path)), str(path))
    try:
        return read_lines(files.enter_context(open_regular_file(path)), str(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{flag} {path}: cannot read it: {getattr(error, 'strerror', None) or error}") from None


def read_lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, without line ends ("\\n" or "\\r\\n") and without a byte order mark.

    Text after the last line end counts as a line.

    Args:
        file: File, opened in binary mode.
        name: Name of the file for messages.

    Raises:
        UserError: If a line is not UTF-8, or is longer than `limits.LINE_CHARACTERS` bytes; the message contains its
            number.
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


def replace_line_ends(text: str) -> str:
    """Return the text with spaces instead of line ends and carriage returns, so that it is one line in any program."""
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")

"""The standard streams of the program.

A failure to write standard output is an error. A failure to write standard error is ignored: for Tercet's own notes by
`tercet.messages.print_note`, and for output of libraries, such as progress bars and warnings, by the stream that this
module sets.
"""

import io
import os
import sys
from contextlib import suppress
from typing import TextIO


class ClosedOutput(Exception):
    """Standard output is closed, so that results cannot be written."""


def open_streams() -> None:
    """Replace standard output and error by streams of this module, and open closed streams as /dev/null.

    Raises:
        ClosedOutput: If standard output is closed. Otherwise, the next file that is opened would receive the output.
    """
    if sys.stdin is None:  # type: ignore[reportUnnecessaryComparison]  # None if it is closed
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    is_closed = sys.stdout is None  # type: ignore[reportUnnecessaryComparison]
    if is_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:  # type: ignore[reportUnnecessaryComparison]  # otherwise print would write to standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # errors="replace": a model may generate characters that the encoding of the terminal does not contain.
    notes = _buffer(sys.stderr.fileno())
    sys.stderr = _Notes(notes, encoding=_encoding(sys.stderr), errors="replace", line_buffering=True)
    if is_closed:
        raise ClosedOutput("standard output is closed; redirect it to a file or to /dev/null")
    output, is_terminal = _buffer(sys.stdout.fileno()), sys.stdout.isatty()
    sys.stdout = _Output(output, encoding=_encoding(sys.stdout), errors="replace", line_buffering=is_terminal)


def has_output_failed() -> bool:
    """Return whether a write to standard output has failed, after `open_streams`."""
    return isinstance(sys.stdout, _Output) and sys.stdout.failed


def discard_output() -> None:
    """Discard further output to standard output, including buffered output that is written at exit."""
    with suppress(OSError, ValueError):  # not a file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _buffer(descriptor: int) -> io.BufferedWriter:
    return open(descriptor, "wb", closefd=False)  # `open` also supports the console of Windows, unlike FileIO


def _encoding(stream: TextIO) -> str:
    """Return the encoding of a stream, but UTF-8 on Windows, whose code pages lack most characters of a model."""
    return "utf-8" if sys.platform == "win32" else stream.encoding


# Both classes override methods of the text layer. If a raw stream were implemented in Python, Ctrl-C during its `write`
# would cause the same bytes to be written twice.
class _Output(io.TextIOWrapper):
    failed = False

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            self.failed = True
            raise

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self.failed = True
            raise


class _Notes(io.TextIOWrapper):
    def write(self, text: str, /) -> int:
        with suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()

"""The standard streams of the program.

Failing to write standard output is an error. A failure to write standard error is ignored.
`tercet.messages.print_note` does this for Tercet's own notes; the stream here also does it for what libraries write,
such as progress bars and warnings.
"""

import io
import os
import sys
from contextlib import suppress


class ClosedOutput(Exception):
    """Standard output is closed, so no result could be written."""


def open_streams() -> None:
    """Prepare the streams that Python opened, and open those that are closed.

    Raises:
        ClosedOutput: If standard output is closed. A file opened later would take its place.
    """
    if sys.stdin is None:  # type: ignore[reportUnnecessaryComparison]  # None if it is closed
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    is_closed = sys.stdout is None  # type: ignore[reportUnnecessaryComparison]
    if is_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:  # type: ignore[reportUnnecessaryComparison]  # otherwise print would write to standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # A model may generate characters that the terminal cannot show.
    notes, encoding = _buffer(sys.stderr.fileno()), sys.stderr.encoding
    sys.stderr = _Notes(notes, encoding=encoding, errors="replace", line_buffering=True)
    if is_closed:
        raise ClosedOutput("standard output is closed; redirect it to a file or to /dev/null")
    output, encoding, is_terminal = _buffer(sys.stdout.fileno()), sys.stdout.encoding, sys.stdout.isatty()
    sys.stdout = _Output(output, encoding=encoding, errors="replace", line_buffering=is_terminal)


def has_output_failed() -> bool:
    """Return whether a write to standard output has failed."""
    return isinstance(sys.stdout, _Output) and sys.stdout.failed


def discard_output() -> None:
    """Write nothing more to standard output, not even at exit."""
    with suppress(OSError, ValueError):  # not a file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _buffer(descriptor: int) -> io.BufferedWriter:
    return io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))


# Both override `write` of the text layer: Ctrl-C during a raw write in Python would write its bytes twice.
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

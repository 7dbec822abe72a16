"""The program's standard streams. What cannot be written to standard output is an error that names it; what cannot be
written to standard error is lost, since failing to report is not failing to work."""

import io
import os
import sys
from contextlib import suppress

STDOUT = "standard output"


class ClosedOutput(Exception):
    """Standard output is closed: no result could be written."""


def open_streams() -> None:
    """Replace the streams that Python opened.

    Raises:
        ClosedOutput: If standard output is closed. A file opened later would take its place.
    """
    if sys.stdin is None:  # type: ignore[reportUnnecessaryComparison]  # as it is where it is closed
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    is_closed = sys.stdout is None  # type: ignore[reportUnnecessaryComparison]
    if is_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:  # type: ignore[reportUnnecessaryComparison]  # else print would write to standard output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = _wrap(_Notes(sys.stderr.fileno(), "w", closefd=False), sys.stderr.encoding, line_buffering=True)
    if is_closed:
        raise ClosedOutput("standard output is closed; send it to a file or to /dev/null")
    sys.stdout = _wrap(_Output(sys.stdout.fileno(), "w", closefd=False), sys.stdout.encoding)


def discard_output() -> None:
    """Write nothing more to standard output, not even at exit."""
    with suppress(OSError, ValueError):  # it is no file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _wrap(raw: io.FileIO, encoding: str, *, line_buffering: bool = False) -> io.TextIOWrapper:
    # A model may write what the terminal cannot show.
    line_buffering = line_buffering or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="replace", line_buffering=line_buffering)


class _Output(io.FileIO):
    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            raise OSError(error.errno, error.strerror, STDOUT) from None


class _Notes(io.FileIO):
    def write(self, data: object, /) -> int:
        with suppress(OSError):
            return super().write(data)  # type: ignore[arg-type]
        return memoryview(data).nbytes  # type: ignore[arg-type]

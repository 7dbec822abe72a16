"""Text for the user: on one line, of bounded length, and without control characters.

A name, key or value in a message may come from an untrusted source: it can be a megabyte long, or contain codes that
clear a terminal. Notes are written to standard error by `print_note`, which ignores errors of the stream, so that a
failure to report does not stop the work.
"""

import os
import reprlib
import sys
from contextlib import suppress
from typing import Any, TextIO

MAX_MESSAGE = 1500  # approximate maximum characters of a message: some terminal lines, since paths may be long
MAX_BITS = 2000  # of a displayed integer: 602 digits, fewer than the lowest limit of Python
MAX_QUOTE = 200  # maximum characters of a quoted text


class _ShortRepr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        """Shorten an integer, also if it has so many digits that Python does not print it."""
        return super().repr_int(x, level) if x.bit_length() < MAX_BITS else "an integer too large to display"


_SHORT = _ShortRepr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlong = 40
_SHORT.maxlevel = 3


def print_note(text: str, *, end: str = "\n", file: TextIO | None = None) -> None:
    """Write `text` to standard error or `file`, and flush it. Errors of the stream are ignored.

    Such errors occur if the disk is full, if the stream is closed, or if a signal handler writes while it interrupts
    another write.
    """
    stream = sys.stderr if file is None else file
    if stream is not None:  # type: ignore[reportUnnecessaryComparison]  # None in a program without a console
        with suppress(OSError, ValueError, RuntimeError):
            print(text, end=end, file=stream, flush=True)


def is_first_process() -> bool:
    """Return whether this process reports for all processes of a multi-device run, or is the only process.

    This is so if all rank variables in the environment are 0 or not set: those of torchrun, of srun, and of Tercet's
    training, which starts one process per device.
    """
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"))


def one_line(text: str) -> str:
    """Return a message on one line of at most about `MAX_MESSAGE` characters.

    White space becomes single spaces, and other characters that cannot be printed are escaped. The middle of a long
    message is left out, since the problem is at the beginning and the remedy at the end.
    """
    if len(text) > MAX_MESSAGE:
        text = f"{text[: MAX_MESSAGE * 2 // 3]} ... {text[-MAX_MESSAGE // 3 :]}"
    # An escaped character takes up to ten characters, so the line may be too long again.
    line = "".join(c if c.isprintable() or c == "\u3000" else escape(c) for c in " ".join(text.split()))
    return line if len(line) <= MAX_MESSAGE + 5 else f"{line[:MAX_MESSAGE]} ..."


def escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def show(value: Any) -> str:
    """Return the `repr` of a value for a message, shortened if it is long or deeply nested."""
    return _SHORT.repr(value)


def counted(number: int, one: str, many: str) -> str:
    """Return a number and the words for its count, such as "1 text is" or "1,024 texts are"."""
    return f"{number:,} {one if number == 1 else many}"


def describe_error(error: BaseException, max_length: int = MAX_QUOTE) -> str:
    """Return the first line of an error's message, shortened, or the name of its class if the message is blank."""
    return shorten(str(error).strip(), max_length) or type(error).__name__


def shorten(text: object, max_length: int = MAX_QUOTE) -> str:
    """Return the first line of a text for a message: at most `max_length` characters, and "..." if it was cut."""
    line = str(text).partition("\n")[0]
    return line if len(line) <= max_length else f"{line[:max_length]}..."

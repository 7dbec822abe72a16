"""What is echoed to people: on one line, of bounded length, and nothing that a terminal would obey.

A name, a key or a value may come from anywhere: it can be a megabyte long or hold the codes that clear a screen.
Notes go to standard error through `print_note` alone, since failing to report is not failing to work.
"""

import os
import reprlib
import sys
from contextlib import suppress
from typing import Any, TextIO

MAX_MESSAGE = 1500  # characters of a message: a few lines of a terminal, and the paths in them may be long
MAX_QUOTE = 200  # characters of what others wrote
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlong = 40
_SHORT.maxlevel = 3


def print_note(text: str, *, end: str = "\n", file: TextIO | None = None) -> None:
    """Write `text` to standard error, or to `file`, at once. What cannot be written is lost, and no error is raised.

    The disk may be full, the stream closed, or the main thread in the middle of a write when a signal is reported.
    """
    stream = sys.stderr if file is None else file
    if stream is not None:  # type: ignore[reportUnnecessaryComparison]  # as it is in a program without a console
        with suppress(OSError, ValueError, RuntimeError):
            print(text, end=end, file=stream, flush=True)


def is_first_process() -> bool:
    """Return whether this process is the one that reports, of those of a run on several devices.

    Its rank is 0 by all names: those of torchrun, of srun, and of the training itself, which starts processes as well.
    """
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"))


def one_line(text: str) -> str:
    """`text` with white space as single spaces, control characters escaped, and its middle left out where it is long:
    what is wrong stands at the beginning, and the remedy at the end."""
    if len(text) > MAX_MESSAGE:
        text = f"{text[: MAX_MESSAGE * 2 // 3]} ... {text[-MAX_MESSAGE // 3 :]}"
    # A character that is escaped takes up to ten: what has many of them is cut again.
    line = "".join(c if c.isprintable() or c == "\u3000" else escape(c) for c in " ".join(text.split()))
    return line if len(line) <= MAX_MESSAGE + 5 else f"{line[:MAX_MESSAGE]} ..."


def escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def show(value: Any) -> str:
    """`repr`, cut where it is long or deep."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no whole number of more than some thousand digits
        return f"a {type(value).__name__} too large to display"


def shorten(text: object, max_length: int = MAX_QUOTE) -> str:
    """What others wrote, as a message can quote it: its first line, and no more than `max_length` characters."""
    line = str(text).partition("\n")[0]
    return line if len(line) <= max_length else f"{line[:max_length]}..."

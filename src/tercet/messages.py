"""What is echoed to people: on one line, of bounded length, and nothing that a terminal would obey.

A name, a key or a value may come from anywhere: it can be a megabyte long or hold the codes that clear a screen.
"""

import reprlib
from typing import Any

LONGEST = 1500  # characters of a message: a few lines of a terminal, and the paths in them may be long
QUOTED = 200  # characters of what others wrote
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlong = 40
_SHORT.maxlevel = 3


def one_line(text: str) -> str:
    """`text` with white space as single spaces, control characters escaped, and its middle left out where it is long:
    what is wrong stands at the beginning, and the remedy at the end."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST * 2 // 3]} ... {text[-LONGEST // 3 :]}"
    # A character that is escaped takes up to ten: what has many of them is cut again.
    line = "".join(c if c.isprintable() or c == "\u3000" else escape(c) for c in " ".join(text.split()))
    return line if len(line) <= LONGEST + 5 else f"{line[:LONGEST]} ..."


def escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def show(value: Any) -> str:
    """`repr`, cut where it is long or deep."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no whole number of more than some thousand digits
        return f"a {type(value).__name__} that is too large to write down"


def shorten(text: object, most: int = QUOTED) -> str:
    """What others wrote, as a message can quote it: its first line, and no more than `most` characters."""
    line = str(text).partition("\n")[0]
    return line if len(line) <= most else f"{line[:most]}..."

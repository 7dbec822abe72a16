"""Tables for people: as wide as the terminal, or wide enough for a file or a pipe."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 120  # characters, where nobody's window says another


def show(result: "RenderableType") -> None:
    """Print on stdout; NO_COLOR is respected."""
    from rich.console import Console

    Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH).print(result)

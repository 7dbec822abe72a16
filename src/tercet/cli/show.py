"""Output of tables on the terminal."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 120  # characters, if stdout is not a terminal


def show(result: "RenderableType") -> None:
    """Print tables to stdout, as wide as the terminal, or `WIDTH` characters. The variable NO_COLOR is respected."""
    from rich.console import Console

    Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH).print(result)

"""Division of a running text at a line end near a given fraction."""

import re
from collections.abc import Iterable

from tercet.config import UserError

BLANK_LINES = re.compile(r"\n(?:[ \t\r]*\n)+")
LINE_END = re.compile(r"\n")
REACH = 0.1  # distance of a blank line from the exact place, as a fraction of the smaller part


def cut_tail(text: str, fraction: float, *, name: str) -> int:
    """Return the position at which the test part of a text begins.

    It is after the nearest blank line, or the nearest line end if no blank line is near.

    Args:
        text: The text.
        fraction: Fraction of the characters in the test part.
        name: Name of the text in the message.

    Raises:
        UserError: If no line end has text on both sides.
    """
    exact = round(len(text) * (1 - fraction))
    reach = round(len(text) * min(fraction, 1 - fraction) * REACH)
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())  # white space only is not a part
    near = (match.end() for match in BLANK_LINES.finditer(text, max(0, exact - reach), exact + reach))
    cuts = (
        _nearest(near, exact, first, last),
        _nearest(map(re.Match.end, LINE_END.finditer(text)), exact, first, last),
    )
    cut = next((cut for cut in cuts if cut is not None), None)
    if cut is None:
        raise UserError(f"{name} has no two lines with text, so it cannot be divided; use more text, or add line ends")
    return cut


def _nearest(places: Iterable[int], exact: int, first: int, last: int) -> int | None:
    return min((place for place in places if first < place < last), key=lambda place: abs(place - exact), default=None)

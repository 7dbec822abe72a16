"""A run's losses as a braille chart for terminals, on a logarithmic scale. A character has 2 by 4 dots.

4.174 ┤⢳⡀
      │ ⠙⠢⣄⡀
1.653 ┤    ⠈⠉⠒⠒⠤⠤⠤⠤⣀⣀⣀
       step 1      100,000
"""

import math
import os
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TextIO

from tercet.checkpoint.metrics import Columns

HEIGHT, MAX_WIDTH, MIN_WIDTH = 7, 72, 30  # lines, and columns of the terminal
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
TRAINING, VALIDATION, PLAIN = "\033[34m", "\033[31m", "\033[0m"

Points = Sequence[tuple[int, float]]


def text_curve(columns: Columns, *, width: int, height: int = HEIGHT, color: bool = False) -> str:
    """Return the losses as lines of text; "" if there are fewer than two, or the terminal is too narrow.

    Args:
        columns: Columns of the metrics.csv.
        width: Columns of the terminal. Less than 30 are too narrow.
        height: Lines of the chart, without the axis.
        color: If True, color the lines. A character with dots of both lines has the color of the validation loss.
    """
    if width < MIN_WIDTH:
        return ""
    width = min(width, MAX_WIDTH) - 12
    training, validation = (
        _drawable(column) for column in (columns["train/nll"] or columns["train/loss"], columns["val/loss"])
    )
    all_points = [*training, *validation]
    if len(all_points) < 2:
        return ""
    first, last = min(step for step, _ in all_points), max(step for step, _ in all_points)
    losses = [loss for _, loss in _average_buckets(training, first, last, 2 * width)] + [loss for _, loss in validation]
    low, high = min(losses), max(losses)
    cells = [[0] * width for _ in range(height)]
    owner = [[""] * width for _ in range(height)]
    for points, paint in ((_average_buckets(training, first, last, 2 * width), TRAINING), (validation, VALIDATION)):
        for x, y in _dots(points, first, last, low, high, 2 * width, 4 * height):
            cells[y // 4][x // 2] |= DOTS[y % 4][x % 2]
            owner[y // 4][x // 2] = paint
    lines = list[str]()
    for row in range(height):
        label = f"{high:.4g}" if row == 0 else f"{low:.4g}" if row == height - 1 else ""
        text = "".join(
            f"{paint if color and paint else ''}{chr(0x2800 + cell) if cell else ' '}{PLAIN if color and paint else ''}"
            for cell, paint in zip(cells[row], owner[row], strict=True)
        )
        lines.append(f"{label:>9} {'┤' if label else '│'}{text.rstrip()}")
    ends = f"step {first:,}", f"{last:,}"
    lines.append(" " * 11 + ends[0] + ends[1].rjust(max(1, width - len(ends[0]))))
    labels = [
        f"{name} {points[-1][1]:.4g}" for name, points in (("training", training), ("validation", validation)) if points
    ]
    paints = [paint for paint, points in ((TRAINING, training), (VALIDATION, validation)) if points]
    legend = [f"{paint}{text}{PLAIN}" if color else text for paint, text in zip(paints, labels, strict=True)]
    return "\n".join([*lines, " " * 11 + "loss: " + ", ".join(legend)])


def terminal_curve(columns: Columns, stream: TextIO | None = None) -> str:
    """Return `text_curve` for a terminal at its width. The stream is stderr by default.

    The text is empty if the stream is not a terminal, or the terminal cannot display braille.
    """
    terminal = stream or sys.stderr
    if not terminal.isatty() or os.environ.get("TERM") == "dumb":
        return ""
    if "utf" not in (getattr(terminal, "encoding", None) or "").lower():
        return ""
    return text_curve(columns, width=shutil.get_terminal_size().columns, color=shows_colors(terminal))


def shows_colors(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colors, and NO_COLOR is not set or empty (https://no-color.org)."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def _drawable(points: Points) -> list[tuple[int, float]]:
    return [(step, loss) for step, loss in points if 0 < loss < math.inf]


def _average_buckets(points: Points, first: int, last: int, buckets: int) -> list[tuple[int, float]]:
    """Return the middle step and the mean loss of each bucket, a range of consecutive steps."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for step, loss in points:
        groups.setdefault((step - first) * buckets // (last - first + 1), []).append((step, loss))
    return [(group[len(group) // 2][0], sum(loss for _, loss in group) / len(group)) for group in groups.values()]


def _dots(
    points: Points, first: int, last: int, low: float, high: float, width: int, height: int
) -> list[tuple[int, int]]:
    """Return the dots of a line through the points, with the origin at the top left."""
    span = math.log(high / low) or 1.0
    places = [
        (
            round((width - 1) * (step - first) / max(1, last - first)),
            min(height - 1, max(0, round((height - 1) * math.log(high / loss) / span))),
        )
        for step, loss in points
    ]
    dots = set(places)
    for (x0, y0), (x1, y1) in pairwise(places):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots |= {(round(x0 + (x1 - x0) * n / steps), round(y0 + (y1 - y0) * n / steps)) for n in range(steps)}
    return sorted(dots)

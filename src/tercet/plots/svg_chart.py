"""Lines against steps as a small SVG: no colour but the lines', so that light and dark themes both show it.

It needs no matplotlib, and is quick enough to be drawn while a run goes on. Long lines are thinned by pairs, the lowest
and the highest of each stretch, so that a spike of one step is seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LEFT, RIGHT, BOTTOM = 58, 10, 26  # margins in CSS pixels; the one above is as high as what stands there
MAX_POINTS = 400  # of a line
BLUE, RED = "#6488b4", "#d8605a"  # each stands 3 to 1 or more from white and from black

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    """Attributes:
    points: of step and value; what is not finite has no place.
    """

    name: str
    color: str
    points: Points

    def describe(self, *, highest: bool = False) -> str:
        """The line in words: its best value, and its last one."""
        step, best = (max if highest else min)(self.points, key=lambda point: point[1])
        word = "highest" if highest else "lowest"
        return f"{self.name}, {word} {_short(best)} at {step:,}, last {_short(self.points[-1][1])}"


def chart_lines(lines: Sequence[ChartLine], *, log: bool) -> list[ChartLine]:
    """The lines that have a point to draw, without what has no place on the scale."""
    bottom = 0.0 if log else -math.inf
    drawable = [
        ChartLine(name=line.name, color=line.color, points=[(x, y) for x, y in line.points if bottom < y < math.inf])
        for line in lines
    ]
    return [line for line in drawable if line.points]


def svg_chart(
    lines: Sequence[ChartLine],
    *,
    label: str,
    log: bool,
    size: tuple[int, int],
    legend: bool = False,
    attributes: str = "",
) -> str:
    """The picture; "" where no line has a point.

    Args:
        label: what it is, for who cannot see it.
        log: whether the scale of values is logarithmic; a linear one has 0 on it.
        size: width and height in CSS pixels.
        legend: whether names and best values stand above the lines.
        attributes: of the element, besides.
    """
    lines = chart_lines(lines, log=log)
    if not lines:
        return ""
    width, height = size
    top = 22 if legend else 10
    steps = [step for line in lines for step, _ in line.points]
    values = [value for line in lines for _, value in line.points]
    first, last, low, high = min(steps), max(steps), min(values), max(values)
    low = low if log else min(low, 0.0)

    def x(step: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * (step - first) / max(1, last - first)

    def y(value: float) -> float:
        span = (math.log(high / low) if log else high - low) or 1.0
        return top + (height - top - BOTTOM) * ((math.log(high / value) if log else high - value) / span)

    middle = math.sqrt(low) * math.sqrt(high) if log else low / 2 + high / 2
    parts = [_grid_line(y(value), _short(value), width) for value in sorted({low, middle, high}, reverse=True)]
    parts += [_text(x(step), height - 8, f"{step:,}", anchor) for step, anchor in ((first, "start"), (last, "end"))]
    place = LEFT
    for line in lines:
        parts.append(_line([(x(step), y(value)) for step, value in _thin(line.points)], line.color))
        if legend:
            parts.append(f'<rect x="{place}" y="6" width="9" height="9" fill="{line.color}"/>')
            parts.append(_text(place + 13, 14, line.describe(), "start"))
            place += (width - LEFT) // len(lines)
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" {attributes}'
    name = f'role="img" aria-label="{escape(label)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {name}>{"".join(parts)}</svg>'


def _thin(points: Points) -> list[tuple[int, float]]:
    """Of each stretch the lowest and the highest, in their order, the first and last points kept."""
    if len(points) <= MAX_POINTS:
        return list(points)
    stretch = -(-2 * len(points) // (MAX_POINTS - 2))
    thinned = [points[0]]
    for start in range(0, len(points), stretch):
        part = range(start, min(start + stretch, len(points)))
        ends = {min(part, key=lambda n: points[n][1]), max(part, key=lambda n: points[n][1])}
        thinned += [points[n] for n in sorted(ends)]
    return [*thinned, points[-1]]


def _line(points: Sequence[tuple[float, float]], color: str) -> str:
    if len(points) == 1:
        ((x, y),) = points
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>'


def _short(value: float) -> str:
    """In at most eight characters: 16,290, 1.859, 0.000278."""
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 0.1 <= abs(value) < 1000 else f"{value:.3g}"


def _grid_line(y: float, label: str, width: int) -> str:
    line = f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".15"/>'
    return line + _text(LEFT - 6, y + 4, label, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    style = 'font-size="11" font-family="sans-serif" fill="currentColor" opacity=".8"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(text)}</text>'

"""Line charts as small SVGs that fit light and dark themes: only the lines are colored.

They need no matplotlib and are fast enough to be drawn again and again during training. Long lines are thinned to the
minimum and maximum of each interval, so that spikes of single steps stay visible.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LEFT, RIGHT, BOTTOM = 58, 10, 26  # margins in CSS pixels; the top one depends on the legend
MAX_POINTS = 400  # per line
BLUE, RED = "#6488b4", "#d8605a"  # contrast of at least 3:1 to white and to black

Points = Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True)
class ChartLine:
    """A line of a chart.

    Attributes:
        name: Name of the line in the legend.
        color: CSS color of the line.
        points: Pairs of step and value; values that are not finite are skipped.
    """

    name: str
    color: str
    points: Points

    def describe(self, *, highest: bool = False) -> str:
        """Return the lowest, or with `highest` the highest, value and the last value as text."""
        step, best = (max if highest else min)(self.points, key=lambda point: point[1])
        word = "highest" if highest else "lowest"
        return f"{self.name}, {word} {_short(best)} at {step:,}, last {_short(self.points[-1][1])}"


def chart_lines(lines: Sequence[ChartLine], *, log: bool) -> list[ChartLine]:
    """Return the lines with only those points that can be drawn, and without lines that have none.

    Values must be finite, and above 0 if the scale is logarithmic (`log`).
    """
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
    """Return the chart as SVG; "" if no line has a point.

    Args:
        lines: Lines to draw.
        label: Accessible name of the chart.
        log: If True, use a logarithmic scale; a linear scale includes 0.
        size: Width and height in CSS pixels.
        legend: If True, show the name and the lowest and last value of each line above the chart.
        attributes: Further attributes of the <svg> element, as text.
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
    """Return the points with the minimum and maximum of each interval in the order of the steps, and both ends.

    Lines with at most `MAX_POINTS` points are unchanged.
    """
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
    """Format a number briefly: 16,290, 1.859, 0.000278.

    Numbers from 1,000 to a million are rounded to whole numbers, others to three or four significant digits.
    """
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 0.1 <= abs(value) < 1000 else f"{value:.3g}"


def _grid_line(y: float, label: str, width: int) -> str:
    line = f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".15"/>'
    return line + _text(LEFT - 6, y + 4, label, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    style = 'font-size="11" font-family="sans-serif" fill="currentColor" opacity=".8"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(text)}</text>'

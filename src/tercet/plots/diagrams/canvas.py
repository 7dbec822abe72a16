"""A canvas for boxes, arrows and plus signs at positions in inches; its size fits the content.

Colors are lighter versions of those in the figure of "Attention Is All You Need".
"""

import textwrap

from matplotlib.patches import Circle, FancyBboxPatch

from tercet.plots.diagrams.boxes import Box, Shape
from tercet.plots.figure import NotebookFigure, new_figure
from tercet.plots.picture_file import disable_mathtext

FILL = {
    "input": "#ffffff", "embedding": "#fbe0e2", "position": "#f3e6f7", "norm": "#f3f4c4", "attention": "#ffe3bd",
    "feedforward": "#c9e9f6", "linear": "#dfe2f2", "softmax": "#d0ead3", "outside": "#d0ead3",
    "product": "#ffe3bd", "pool": "#eeeeee",
}  # fmt: skip
INK, SOFT, EDGE = "#222222", "#5b6570", "#6b7280"
TITLE, TEXT, SMALL = 9.0, 7.5, 7.0  # points
LINE, PADDING = 0.145, 0.09  # inches: a line of details, and the padding of a box
LETTERS_AN_INCH = 16.5  # average characters per inch at the font size of details
MARGIN = 0.3  # inches


class Canvas:
    """A drawing area that grows with its content. Coordinates are in inches, and y grows upward."""

    def __init__(self) -> None:
        self.figure: NotebookFigure = new_figure(1, 1)
        self.figure.set_layout_engine("none")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self._x: list[float] = []
        self._y: list[float] = []

    def finish(self) -> NotebookFigure:
        """Return the figure, in its real size and with a margin."""
        left, right = min(self._x) - MARGIN, max(self._x) + MARGIN
        low, high = min(self._y) - MARGIN, max(self._y) + MARGIN
        self.axes.set(xlim=(left, right), ylim=(low, high))
        self.figure.set_size_inches(right - left, high - low)
        return self.figure

    def draw_box(self, step: Box, x: float, y: float, width: float) -> float:
        """Draw a box with its lower edge at y and its center at x; return its upper edge."""
        lines = [line for text in step.details for line in textwrap.wrap(text, int(width * LETTERS_AN_INCH))]
        height = 2 * PADDING + 0.17 + LINE * len(lines)
        self.draw_frame(x - width / 2, y, width, height, fill=FILL[step.kind], dashed=step.kind == "outside")
        top = y + height - PADDING - 0.085
        self.draw_text(step.title, x, top, size=TITLE, weight="bold")
        for number, line in enumerate(lines, 1):
            self.draw_text(line, x, top - 0.015 - LINE * number, size=TEXT)
        return y + height

    def draw_chip(self, text: str, x: float, y: float) -> float:
        """Draw a small box of one line, such as "dropout 0.1", above y; return its upper edge."""
        width = 0.35 + len(text) / LETTERS_AN_INCH
        self.draw_frame(x - width / 2, y, width, 0.2, fill="#ffffff", dashed=True)
        self.draw_text(text, x, y + 0.095, size=SMALL, color=SOFT)
        return y + 0.2

    def draw_frame(self, x: float, y: float, width: float, height: float, *, fill: str, dashed: bool = False,
              background: bool = False) -> None:  # fmt: skip
        patch = FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.06", facecolor=fill,
            edgecolor="#b6bcc6" if background else EDGE, linewidth=0.8, linestyle="--" if dashed else "-",
            zorder=0 if background else 3,
        )  # fmt: skip
        self.axes.add_patch(patch)
        self._reach((x, y), (x + width, y + height))

    def draw_plus(self, x: float, y: float) -> float:
        """Draw a plus sign with its lower edge at y and its center at x; return its upper edge."""
        self.axes.add_patch(Circle((x, y + 0.1), 0.1, facecolor="white", edgecolor=INK, linewidth=0.9, zorder=3))
        for dx, dy in ((0.055, 0), (0, 0.055)):
            self.axes.plot([x - dx, x + dx], [y + 0.1 - dy, y + 0.1 + dy], color=INK, linewidth=0.9, zorder=4)
        return y + 0.2

    def draw_arrow(self, *points: tuple[float, float], head: bool = True, color: str = INK) -> None:
        """Draw a line through the points, with a head at its end."""
        self.axes.plot(*zip(*points, strict=True), color=color, linewidth=1.0, zorder=2, solid_capstyle="round")
        if head:
            self.axes.annotate(
                "", xy=points[-1], xytext=points[-2], zorder=2,
                arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.0, "shrinkA": 0, "shrinkB": 0,
                            "mutation_scale": 9},
            )  # fmt: skip
        self._reach(*points)

    def draw_shape(self, shape: Shape, x: float, y: float) -> None:
        """Write the shape of a tensor to the right of its arrow, which is at x."""
        self.draw_text(format_shape(shape), x + 0.07, y, size=SMALL, color=SOFT, align="left")

    def draw_text(self, text: str, x: float, y: float, *, size: float = TEXT, color: str = INK, weight: str = "normal",
              align: str = "center") -> None:  # fmt: skip
        label = self.axes.text(
            x, y, text, fontsize=size, color=color, fontweight=weight, ha=align, va="center", zorder=5
        )
        disable_mathtext([label])
        width = len(text) * size / 72 * 0.6
        starts = {"center": x - width / 2, "left": x, "right": x - width}[align]
        self._reach((starts, y - size / 144), (starts + width, y + size / 144))

    @property
    def left(self) -> float:
        return min(self._x)

    @property
    def top(self) -> float:
        return max(self._y)

    @property
    def bottom(self) -> float:
        return min(self._y)

    def _reach(self, *points: tuple[float, float]) -> None:
        self._x += [x for x, _ in points]
        self._y += [y for _, y in points]


def format_shape(shape: Shape) -> str:
    """Format a shape as `(B, T, 512)`."""
    return f"({', '.join(map(str, shape))})"


def format_letters(letters: dict[str, str]) -> str:
    """Return the meaning of the letters on one line; "" if there are none."""
    return " · ".join(f"{letter}: {words}" for letter, words in letters.items())

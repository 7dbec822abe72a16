"""The sheet that every picture is drawn on: white, in few colours that all eyes tell apart, shown by a notebook."""

import io
from typing import cast

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties

from tercet.plots.picture_file import disable_mathtext, ignore_missing_glyphs

# Blue against red, unlike in lightness too, is told apart by nearly all eyes; lines differ in style as well.
DARK, PALE, RED, GREY, LINES = "#1f4e79", "#9db4c8", "#c0504d", "#7f7f7f", "#e4e4e4"
SMALL, MIDDLE, LARGE = 8, 9, 12  # points, of labels, of what stands beside axes, and of a title
TITLE_WIDTH_SHARE = 0.97  # text is measured on another pixel grid than it is drawn on


class NotebookFigure(Figure):
    """A figure of no window, which a notebook shows where it is the value of a cell."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with ignore_missing_glyphs():
            self.savefig(file, format="png", dpi=100)
        return file.getvalue()


def new_figure(width: float, height: float) -> NotebookFigure:
    """An empty picture of so many inches."""
    picture = NotebookFigure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(picture)
    return picture


def add_title(figure: Figure | SubFigure, text: str, *, size: float = LARGE) -> None:
    """A title above all that is drawn, its lines broken where they are wider than the figure, or than its part.

    Each line that this adds makes the whole figure that much higher, so that nothing below is squeezed.
    """
    lines = [part for line in text.split("\n") for part in _wrap_line(figure, line, size)]
    disable_mathtext([figure.suptitle("\n".join(lines), fontsize=size)])
    root = figure.get_figure(root=True)
    assert root is not None
    extra_lines = len(lines) - len(text.split("\n"))
    root.set_figheight(root.get_figheight() + extra_lines * 1.3 * size / 72)


def _wrap_line(figure: Figure | SubFigure, line: str, size: float) -> list[str]:
    """A line as lines that fit: broken at spaces, or anywhere in a word that is too wide by itself."""
    font, max_width = FontProperties(size=size), TITLE_WIDTH_SHARE * figure.bbox.width
    renderer = cast("FigureCanvasAgg", figure.canvas).get_renderer()  # `sheet` gave it that

    def fits(text: str) -> bool:
        with ignore_missing_glyphs():
            return renderer.get_text_width_height_descent(text, font, ismath=False)[0] <= max_width

    lines, current = list[str](), ""
    for word in line.split(" "):
        candidate = f"{current} {word}" if current else word
        if fits(candidate):
            current = candidate
            continue
        lines += [current] if current else []
        current = word
        while not fits(current) and len(current) > 1:
            n = next(n for n in range(len(current) - 1, 0, -1) if n == 1 or fits(current[:n]))
            lines.append(current[:n])
            current = current[n:]
    return [*lines, current]

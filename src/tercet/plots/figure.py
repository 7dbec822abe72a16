"""The base of all figures: white, in a few colors that are distinguishable for nearly all readers."""

import io
from typing import cast

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties

from tercet.plots.picture_file import disable_mathtext, ignore_missing_glyphs

# Blue and red that also differ in lightness are distinguishable for nearly all readers; line styles differ as well.
DARK, PALE, RED, GRAY, LINES = "#1f4e79", "#9db4c8", "#c0504d", "#7f7f7f", "#e4e4e4"
SMALL, MIDDLE, LARGE = 8, 9, 12  # points: labels, axis titles, figure titles
TITLE_WIDTH_SHARE = 0.97  # of the figure's width; drawn text may be wider than measured text, by rounding to pixels


class NotebookFigure(Figure):
    """A figure without a window, which notebooks display."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with ignore_missing_glyphs():
            self.savefig(file, format="png", dpi=100)
        return file.getvalue()


def new_figure(width: float, height: float) -> NotebookFigure:
    """Return an empty figure; sizes are in inches."""
    picture = NotebookFigure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(picture)
    return picture


def add_title(figure: Figure | SubFigure, text: str, *, size: float = LARGE) -> None:
    """Add a title above the figure; lines wider than the figure are wrapped.

    Each added line makes the whole figure higher, so that the content keeps its size.
    """
    lines = [part for line in text.split("\n") for part in _wrap_line(figure, line, size)]
    disable_mathtext([figure.suptitle("\n".join(lines), fontsize=size)])
    root = figure.get_figure(root=True)
    assert root is not None
    extra_lines = len(lines) - len(text.split("\n"))
    root.set_figheight(root.get_figheight() + extra_lines * 1.3 * size / 72)


def _wrap_line(figure: Figure | SubFigure, line: str, size: float) -> list[str]:
    """Wrap a line at spaces, or within words that are too wide."""
    font, max_width = FontProperties(size=size), TITLE_WIDTH_SHARE * figure.bbox.width
    renderer = cast("FigureCanvasAgg", figure.canvas).get_renderer()  # set by `new_figure`

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

"""The sheet that every picture is drawn on: white, in few colours that all eyes tell apart, shown by a notebook."""

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tercet.inspect.pictures import boxes_for_missing

# Blue against red, unlike in lightness too, is told apart by nearly all eyes; lines differ in style as well.
DARK, PALE, RED, GREY, LINES = "#1f4e79", "#9db4c8", "#c0504d", "#7f7f7f", "#e4e4e4"
SMALL, MIDDLE = 8, 9  # points, of labels and of what stands beside axes


class Picture(Figure):
    """A figure of no window, which a notebook shows where it is the value of a cell."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with boxes_for_missing():
            self.savefig(file, format="png", dpi=100)
        return file.getvalue()


def sheet(width: float, height: float) -> Picture:
    """An empty picture of so many inches."""
    picture = Picture(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(picture)
    return picture

"""A run's losses as a small SVG for notebooks and reports; `plot_loss` draws a larger picture."""

from tercet.checkpoint.metrics import Columns
from tercet.plots.svg_chart import BLUE, RED, ChartLine, svg_chart

SIZE = (520, 190)  # CSS pixels


def loss_lines(columns: Columns) -> list[ChartLine]:
    """Return the losses of training and validation, without label smoothing."""
    return [
        ChartLine(name="training", color=BLUE, points=columns["train/nll"] or columns["train/loss"]),
        ChartLine(name="validation", color=RED, points=columns["val/loss"]),
    ]


def loss_curve(columns: Columns) -> str:
    """Return the losses against the step on a logarithmic scale as SVG; "" if there are none."""
    return svg_chart(
        loss_lines(columns), label="losses against steps", log=True, size=SIZE, legend=True,
        attributes='style="max-width:100%"',
    )  # fmt: skip

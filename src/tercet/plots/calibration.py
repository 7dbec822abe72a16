"""Reliability diagram: the accuracy of predictions against their confidence, above the number of predictions.

Points on the diagonal are calibrated. Below it, the model is too confident (DeGroot and Fienberg 1983).
"""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tercet.plots.figure import DARK, GRAY, LINES, PALE, add_title, new_figure
from tercet.plots.picture_file import NothingToDraw


class ReliabilityBin(NamedTuple):
    """Predictions with a confidence from `low` to `high`; the means are None if there are none."""

    low: float
    high: float
    confidence: float | None
    accuracy: float | None
    predictions: int


def plot_calibration(bins: Sequence[ReliabilityBin], *, error: float, title: str) -> Figure:
    """Plot the accuracy of each bin against its mean confidence, and the number of its predictions.

    Args:
        bins: Bins in ascending order of confidence.
        error: Expected calibration error, for the title.
        title: Name of the run for the title.

    Raises:
        NothingToDraw: If no bin contains a prediction.
    """
    filled = [row for row in bins if row.predictions]
    if not filled:
        raise NothingToDraw("the model has no predictions with probabilities; evaluate a classifier")
    figure = new_figure(6, 6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot((0, 1), (0, 1), color=GRAY, linestyle="--", label="calibrated")
    upper.plot(
        [row.confidence for row in filled], [row.accuracy for row in filled], color=DARK, marker="o", label="model"
    )
    lower.bar(
        [row.low for row in bins], [row.predictions for row in bins], width=[row.high - row.low for row in bins],
        align="edge", color=PALE, edgecolor="white",
    )  # fmt: skip
    for axes in (upper, lower):
        axes.grid(color=LINES)
        axes.set_axisbelow(True)
        axes.set_xlim(0, 1)
    upper.set(ylim=(0, 1), ylabel="fraction that is correct")
    lower.set(xlabel="probability that the model gives", ylabel="predictions")
    lower.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    upper.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    upper.legend(frameon=False)
    add_title(figure, f"{title}: calibration error {error:.1%} (ECE)")
    return figure

"""Learning rates against steps: as logged in a run, with warm-up and decay marked, or computed from schedules."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from tercet.checkpoint.metrics import read_metrics
from tercet.plots.curves import MAX_MARKED_POINTS, format_steps
from tercet.plots.figure import DARK, GRAY, LINES, RED, SMALL, add_title, new_figure
from tercet.plots.picture_file import NothingToDraw, disable_mathtext

COLUMNS = ("lr", "momentum")  # columns of metrics.csv, possibly followed by a slash and the name of a parameter group
NAMES = {"lr": "learning rate"}
STYLES = ("-", "--", ":", "-.")
COLORS = (DARK, RED, GRAY, "#2e8b78")


def plot_schedule(metrics: Path, *, title: str) -> Figure:
    """Plot the logged learning rates, and momenta in a second panel if they were logged.

    Args:
        metrics: Path of the metrics.csv.
        title: Name of the run for the title.

    Raises:
        NothingToDraw: If no learning rate was logged yet.
    """
    columns = read_metrics(metrics)
    groups = {
        kind: {
            name: finite
            for name, points in columns.items()
            if name.partition("/")[0] == kind and (finite := [point for point in points if math.isfinite(point[1])])
        }
        for kind in COLUMNS
    }
    groups = {kind: curves for kind, curves in groups.items() if curves}
    if "lr" not in groups:
        raise NothingToDraw(f"{metrics} has no learning rate yet; continue the training, then plot again")
    figure = new_figure(8, 4.5 * len(groups))
    for axes, (kind, curves) in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups.items(), strict=True):
        for number, (name, points) in enumerate(curves.items()):
            steps, values = [step for step, _ in points], [value for _, value in points]
            marker = "o" if len(points) <= MAX_MARKED_POINTS else None
            top = f"highest {max(values):.4g}, last {values[-1]:.4g}"
            axes.plot(
                steps, values, color=DARK, linestyle=STYLES[number % len(STYLES)], linewidth=1.6,
                marker=marker, markersize=3, label=f"{NAMES.get(name, name)}: {top}",
            )  # fmt: skip
        if kind == "lr":
            _mark_phases(axes, next(iter(curves.values())))
        _format_axes(axes, NAMES.get(kind, kind))
        axes.legend(loc="lower center")
    add_title(figure, f"{title}: learning rate of each step")
    return figure


def plot_schedules(rates: Mapping[str, Sequence[float]], *, title: str = "Learning-rate schedules") -> Figure:
    """Plot learning-rate schedules without a run.

    Args:
        rates: Learning rate of each step, from step 1 on, by the label of the schedule.
        title: Title of the figure.
    """
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    for number, (name, curve) in enumerate(rates.items()):
        color, style = COLORS[number % len(COLORS)], STYLES[number // len(COLORS) % len(STYLES)]
        highest = max(curve)
        peak = f"highest {highest:.4g} at step {curve.index(highest) + 1:,}"
        axes.plot(
            range(1, len(curve) + 1), curve, color=color, linestyle=style, linewidth=1.6,
            marker="o" if len(curve) <= MAX_MARKED_POINTS else None, markersize=3, label=f"{name}: {peak}",
        )  # fmt: skip
    _format_axes(axes, NAMES["lr"])
    disable_mathtext([axes.set_title(title), *axes.legend(fontsize=SMALL).get_texts()])
    return figure


def _format_axes(axes: Axes, label: str) -> None:
    axes.set_ylim(bottom=0)
    axes.set(xlabel="optimizer step", ylabel=label)
    format_steps(axes)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.4g}"))
    axes.grid(color=LINES)


def _mark_phases(axes: Axes, points: list[tuple[int, float]]) -> None:
    """Color the background of the steps before the learning rate reaches its peak, and of those after the peak."""
    peak = max(rate for _, rate in points)
    full = [step for step, rate in points if rate >= peak * (1 - 1e-6)]
    first, last = points[0][0], points[-1][0]
    if full[0] > first:
        words = "to" if full[0] < last else "still rising at"
        axes.axvspan(first, full[0], color="#f5e6c8", zorder=0, label=f"warm-up: {words} step {full[0]:,}")
    if full[-1] < last:
        axes.axvspan(full[-1], last, color="#dce9f2", zorder=0, label=f"decay: from step {full[-1]:,}")

"""`loss.png`: losses against steps, on a logarithmic scale, and scores against minutes."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

from tercet.checkpoint.metrics import Columns, read_metrics
from tercet.plots.figure import DARK, LINES, PALE, RED, new_figure
from tercet.plots.picture_file import NothingToDraw, disable_mathtext

Points = Sequence[tuple[float, float]]

# Scores that are drawn next to the losses: names of the columns and a description, by the label of the axis. Only the
# first of these groups that has values is drawn.
SCORES = {
    "BLEU": ({"val/bleu": "BLEU"}, "BLEU of greedy translations of the validation part"),
    "share": ({"val/accuracy": "accuracy", "val/f1": "F1"}, "correct predictions on the validation part"),
    "correlation": (
        {"val/pearson": "Pearson", "val/spearman": "Spearman"},
        "predicted and true numbers of the validation part",
    ),
    "search": (
        {"val/recall_at_10": "recall@10", "val/ndcg_at_10": "nDCG@10"},
        "search among the documents of the validation part",
    ),
}
MAX_MARKED_POINTS = 30  # lines with more points have no markers, except for thick lines of this module


def plot_loss(metrics: Path, *, title: str) -> Figure:
    """Plot the training and validation loss of a metrics.csv against steps.

    If more than two epochs are finished, the mean of each is drawn too. BLEU, accuracy and F1, correlation, or nDCG, if
    recorded, are drawn in a second panel against minutes.

    Args:
        metrics: Path of the metrics.csv.
        title: Name of the run for the title.

    Raises:
        NothingToDraw: If no loss above 0 was logged yet.
    """
    columns = read_metrics(metrics)
    has_scores = bool(_find_score_group(columns))
    figure = new_figure(13 if has_scores else 8, 5)
    panels = figure.subplots(1, 2 if has_scores else 1, squeeze=False)[0]
    _draw_losses(panels[0], columns, f"{title}: loss", metrics)
    if has_scores:
        _draw_score(panels[1], columns)
    return figure


def plot_score(metrics: Path, *, title: str) -> Figure:
    """Plot BLEU, accuracy and F1, correlations, or nDCG against minutes of training.

    Args:
        metrics: Path of the metrics.csv.
        title: Name of the run for the title.

    Raises:
        NothingToDraw: If the run has none of these scores.
    """
    columns = read_metrics(metrics)
    if not _find_score_group(columns):
        raise NothingToDraw(f"{metrics} has no BLEU, accuracy, F1 or correlation; plot loss instead")
    figure = new_figure(8, 5)
    _draw_score(figure.subplots(), columns, f"{title}: ")
    return figure


def _draw_losses(axes: Axes, columns: Columns, title: str, path: Path) -> None:
    train, validation = columns["train/nll"] or columns["train/loss"], columns["val/loss"]  # without label smoothing
    losses = [loss for _, loss in (*train, *validation) if 0 < loss < math.inf]
    if not losses:
        raise NothingToDraw(f"{path} has no loss above 0 yet; continue the training, then plot again")
    if train:
        _draw_line(axes, train, PALE, 0.8, f"training, each logged batch; last {train[-1][1]:.4g}")
    means = _mean_by_epoch(train, dict(columns["epoch"]))
    if len(means) > 2:
        _draw_line(axes, means, DARK, 1.6, "training, mean of each epoch")
    finite = [point for point in validation if math.isfinite(point[1])]
    if finite:
        step, best = min(finite, key=lambda point: point[1])
        label = f"validation, lowest {best:.4f} at step {step:,}; last {finite[-1][1]:.4f}"
        _draw_line(axes, validation, RED, 1.6, label)
    if entropy := [point for point in columns["val/unigram_entropy"] if 0 < point[1] < math.inf]:
        words = f"counting tokens (unigram entropy), {entropy[-1][1]:.4g}"
        axes.axhline(entropy[-1][1], color="#7f7f7f", linewidth=1, linestyle="--", label=words)
        losses.append(entropy[-1][1])
    unit = "share of the variance" if columns["val/rmse"] else f"nats per {'label' if columns['val/f1'] else 'token'}"
    axes.set(xlabel="optimizer step", ylabel=f"loss ({unit}, logarithmic scale)")
    disable_mathtext([axes.set_title(title)])
    if min(losses) == max(losses):  # before the scale is changed, which requires limits that differ
        axes.set_ylim(losses[0] / 1.5, losses[0] * 1.5)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(choose_loss_ticks(min(losses), max(losses)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.4g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    format_steps(axes)
    axes.grid(which="major", color=LINES)
    axes.legend()


def choose_loss_ticks(low: float, high: float) -> Locator:
    """Return a locator with a readable number of ticks from `low` to `high`, for ranges of 1% to six decades."""
    if high < 3 * low:
        return MaxNLocator(nbins=8, steps=[1, 2, 5, 10])
    decades = math.log10(high / low)
    return LogLocator(
        subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades < 2 else (1.0, 2.0, 5.0) if decades < 4 else (1.0,)
    )


def _draw_score(axes: Axes, columns: Columns, title: str = "") -> None:
    group = _find_score_group(columns)
    names, description = SCORES[group]
    seconds, bottom, top = _keep_finite(columns["seconds"]), 0.0, 0.0
    for (name, word), color in zip(names.items(), (DARK, RED), strict=False):
        scores = [(step, score) for step, score in columns[name] if math.isfinite(score) and step in seconds]
        if not scores:
            continue
        step, best = max(scores, key=lambda point: point[1])
        bottom, top = min(bottom, *(score for _, score in scores)), max(top, best)
        last = f"{word}, highest {best:.4g} at step {step:,}; last {scores[-1][1]:.4g}"
        _draw_line(axes, [(seconds[step] / 60, score) for step, score in scores], color, 1.6, last)
    axes.set(xlabel="minutes of training", ylabel=group)
    disable_mathtext([axes.set_title(title + description)])
    axes.set_ylim(1.08 * bottom, max(1e-3, 1.08 * top))
    axes.set_xlim(left=0)
    axes.grid(color=LINES)
    axes.legend(loc="lower right")


def _find_score_group(columns: Columns) -> str:
    """Return the name of the first group of scores that has values with recorded times; "" if there is none."""
    seconds = _keep_finite(columns["seconds"])
    return next(
        (
            group
            for group, (names, _) in SCORES.items()
            if any(math.isfinite(score) and step in seconds for name in names for step, score in columns[name])
        ),
        "",
    )


def _keep_finite(points: Sequence[tuple[int, float]]) -> dict[int, float]:
    return {step: value for step, value in points if math.isfinite(value)}


def _draw_line(axes: Axes, points: Points, color: str, width: float, label: str) -> None:
    marker = "o" if len(points) <= MAX_MARKED_POINTS or width > 1 else None
    x, y = [x for x, _ in points], [y if math.isfinite(y) else math.nan for _, y in points]  # NaN makes a gap
    axes.plot(x, y, color=color, linewidth=width, marker=marker, markersize=3, label=label)


def format_steps(axes: Axes) -> None:
    """Format the axis of steps as integers with thousands separators."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _mean_by_epoch(train: Sequence[tuple[int, float]], epochs: dict[int, float]) -> list[tuple[int, float]]:
    """Return the mean loss of each finished epoch, at its last logged step.

    Args:
        train: Step and loss of each logged step.
        epochs: Number of passes over the data before each step, with fractions, as in metrics.csv.
    """
    groups: dict[int, list[tuple[int, float]]] = {}
    for step, loss in train:
        if math.isfinite(epochs.get(step, math.nan)):
            groups.setdefault(int(epochs[step]), []).append((step, loss))
    epochs_of_points = list(groups.values())
    if not _ends_an_epoch([point for point in epochs.items() if math.isfinite(point[1])]):
        epochs_of_points = epochs_of_points[:-1]
    return [(points[-1][0], sum(loss for _, loss in points) / len(points)) for points in epochs_of_points]


def _ends_an_epoch(epochs: Points) -> bool:
    """Return whether the last logged step ends an epoch.

    The length of a step, in epochs, follows from the last two logged steps.

    Args:
        epochs: Step, and number of passes over the data before it, of each logged step.
    """
    if len(epochs) < 2:
        return False
    (previous_step, previous_epoch), (last_step, last_epoch) = epochs[-2:]
    end = last_epoch + 1.01 * (last_epoch - previous_epoch) / (last_step - previous_step)  # 1% tolerance for rounding
    return end >= int(last_epoch) + 1

"""`loss.png`: losses against steps, on a logarithmic scale, and BLEU or accuracy against minutes."""

from pathlib import Path
from typing import Any

from tercet.training.metrics import read_metrics

Columns = dict[str, list[tuple[int, float]]]

# What is drawn beside the losses: the first that there is, its name and of what it is.
SCORES = {
    "val/bleu": ("BLEU", "greedy translations of the validation part"),
    "val/accuracy": ("accuracy", "share of right predictions on the validation part"),
}


def draw_loss(metrics: Path, picture: Path, *, title: str) -> None:
    """Draw the `train/loss` and `val/loss` of a metrics.csv; with several epochs, each epoch's mean as well.

    Where there is a `val/bleu` or `val/accuracy`, it is drawn beside them, against minutes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = read_metrics(metrics)
    scored = next((name for name in SCORES if columns[name]), None)
    figure = Figure(figsize=(13 if scored else 8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2 if scored else 1, squeeze=False)[0]
    _draw_losses(panels[0], columns, title)
    if scored:
        _draw_score(panels[1], columns, scored)
    figure.savefig(picture, dpi=120, metadata={"Software": None})


def _draw_losses(axes: Any, columns: Columns, title: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    train, validation = columns["train/nll"] or columns["train/loss"], columns["val/loss"]  # both without smoothing
    axes.plot(*_xy(train), color="#9db4c8", linewidth=0.8, label="training, each logged batch")
    means = _epoch_means(train, dict(columns["epoch"]))
    if len(means) > 2:
        axes.plot(*_xy(means), color="#1f4e79", linewidth=1.6, label="training, mean of each epoch")
    if validation:
        best = min(validation, key=lambda point: point[1])
        axes.plot(
            *_xy(validation), color="#c0504d", linewidth=1.6, marker="o", markersize=3,
            label=f"validation, lowest {best[1]:.4f} at step {best[0]}",
        )  # fmt: skip
    if entropy := columns["val/unigram_entropy"]:
        axes.axhline(entropy[-1][1], color="#7f7f7f", linewidth=1, linestyle="--", label="counting words")
    axes.set(xlabel="optimizer step", ylabel="loss (nats a token)", title=title)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(which="major", color="#e4e4e4")
    axes.legend()


def _draw_score(axes: Any, columns: Columns, name: str) -> None:
    seconds, scores = dict(columns["seconds"]), columns[name]
    label, about = SCORES[name]
    best = max(scores, key=lambda point: point[1])
    axes.plot(
        [seconds[step] / 60 for step, _ in scores], [score for _, score in scores],
        color="#1f4e79", linewidth=1.6, marker="o", markersize=3,
        label=f"highest {best[1]:.4g} at step {best[0]}",
    )  # fmt: skip
    axes.set(xlabel="minutes of training", ylabel=label, title=about)
    axes.set_ylim(bottom=0)
    axes.grid(color="#e4e4e4")
    axes.legend(loc="lower right")


def _xy(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _epoch_means(train: list[tuple[int, float]], epochs: dict[int, float]) -> list[tuple[int, float]]:
    """The mean loss of each finished epoch, at its last step."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for step, loss in train:
        groups.setdefault(int(epochs[step]), []).append((step, loss))
    finished = list(groups.values())[:-1]
    return [(points[-1][0], sum(loss for _, loss in points) / len(points)) for points in finished]

"""`loss.png`: training and validation loss against steps, on a logarithmic scale."""

from pathlib import Path

from tercet.training.metrics import read_metrics


def draw_loss(metrics: Path, picture: Path, *, title: str) -> None:
    """Draw the `train/loss` and `val/loss` of a metrics.csv; with several epochs, each epoch's mean as well."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    columns = read_metrics(metrics)
    train, validation = columns["train/loss"], columns["val/loss"]
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
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
    axes.set(xlabel="optimizer step", ylabel="loss (nats a token)", title=title)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(which="major", color="#e4e4e4")
    axes.legend()
    figure.savefig(picture, dpi=120, metadata={"Software": None})


def _xy(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _epoch_means(train: list[tuple[int, float]], epochs: dict[int, float]) -> list[tuple[int, float]]:
    """The mean loss of each finished epoch, at its last step."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for step, loss in train:
        groups.setdefault(int(epochs[step]), []).append((step, loss))
    finished = list(groups.values())[:-1]
    return [(points[-1][0], sum(loss for _, loss in points) / len(points)) for points in finished]

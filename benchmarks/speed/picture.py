"""A plot of the figures: a panel per row, a bar per contender, fastest first, with the quartiles of its rounds."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.figures import Spread
from benchmarks.speed.measure import Result

COLORS = {"ours": "#c0504d", "off": "#e5b8b7", "readme": "#9aa5b1", "peer": "#5b7c99", "limit": "#e3e3e3"}
LABELS = {
    "ours": "Tercet",
    "off": "Tercet without a kernel",
    "readme": "a peer as its README runs it",
    "peer": "a peer set up for this machine",
    "limit": "lower bound",
}
BAR, MARGIN = 0.3, 1.1  # inches


def draw(results: Sequence[Result], path: Path, *, title: str = "") -> None:
    """Draw the rows that have figures; without any, no plot is written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    drawn_results = [result for result in results if result.figures]
    if not drawn_results:
        return
    heights = [BAR * len(result.figures) + MARGIN for result in drawn_results]
    figure = Figure(figsize=(10, sum(heights) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(drawn_results), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, result in zip(panels, drawn_results, strict=True):
        _panel(axes, result)
    sides = {figure_values["side"] for result in drawn_results for figure_values in result.figures.values()}
    figure.legend(
        handles=[Patch(color=color, label=LABELS[side]) for side, color in COLORS.items() if side in sides],
        loc="outside upper center", ncols=4, frameon=False, title=title, title_fontsize=9,
    )  # fmt: skip
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _panel(axes: object, result: Result) -> None:
    figures = sorted(result.figures.items(), key=lambda item: item[1]["speed"]["median"])
    spreads = [Spread(**figure["speed"]) for _, figure in figures]
    if result.seconds_each:
        spreads = [spread.inverse() for spread in spreads]
    medians = [spread.median for spread in spreads]
    bars = axes.barh(  # pyright: ignore
        [name for name, _ in figures],
        medians,
        color=[COLORS[figure["side"]] for _, figure in figures],
        xerr=[[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]],
        error_kw={"ecolor": "#444444", "elinewidth": 1, "capsize": 2},
        height=0.72,
    )
    labels = [_label(spread.median, figure) for spread, (_, figure) in zip(spreads, figures, strict=True)]
    axes.bar_label(bars, labels, padding=6, fontsize=8)  # pyright: ignore
    axes.set_xlim(0, 1.3 * max(spread.high for spread in spreads))  # pyright: ignore
    axes.set_xlabel("seconds" if result.seconds_each else f"{result.unit}/s", fontsize=8)  # pyright: ignore
    axes.set_title(result.title, fontsize=10, loc="left")  # pyright: ignore
    axes.tick_params(labelsize=8)  # pyright: ignore
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)  # pyright: ignore


def _label(value: float, figure: dict[str, object]) -> str:
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return number if figure["share"] is None else f"{number}  ({figure['share']:.0%} of {figure['bound']})"

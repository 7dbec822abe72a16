"""`comparison.png`: validation losses of variants against steps and time, with a band over seeds.

If exactly two keys vary, there is one panel for each value of the key with fewer values, if these are at most four and
there are more than three variants. The lines of the other panels are drawn in gray. Losses with different units never
share an axis.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

from tercet.checkpoint.metrics import Columns
from tercet.plots.curves import MAX_MARKED_POINTS, choose_loss_ticks, format_steps
from tercet.plots.figure import LINES, SMALL, new_figure
from tercet.plots.picture_file import NothingToDraw, disable_mathtext

# Okabe and Ito (2008), distinguishable for nearly all readers, without yellow, which is too pale for lines.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00")
STYLES = ("-", "--", "-.", ":")
BACKGROUND_COLOR = "#d5d5d5"
MAX_PANELS = 4  # per row
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600}
EARLY = 0.1  # share of the steps whose losses may exceed the axis, so that later differences are visible


@dataclass(frozen=True, kw_only=True)
class VariantCurves:
    """Metrics of one variant.

    Attributes:
        name: Name of the variant in the legend.
        settings: Values of the varied keys.
        panel: Unit of the losses. Only variants with the same unit share an axis.
        runs: Columns of the metrics.csv of each seed.
    """

    name: str
    settings: dict[str, str]
    panel: str
    runs: tuple[Columns, ...]


@dataclass(frozen=True, kw_only=True)
class Band:
    """Validation loss at the steps that all seeds share: mean, lowest and highest over the seeds.

    `seconds` is the mean training time at each step.
    """

    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def plot_variants(variants: Sequence[VariantCurves], *, title: str, repeated: str = "seed") -> Figure:
    """Plot the curves of all variants. Earlier variants in the list are drawn in front of later ones.

    Args:
        variants: Curves of the variants.
        title: Title of the figure.
        repeated: Difference between the runs of a variant: "seed" or "fold".

    Raises:
        NothingToDraw: If no variant has a validation loss.
    """
    bands = {variant.name: band for variant in variants if (band := _make_band(variant.runs)) is not None}
    plotted = [variant for variant in variants if variant.name in bands]
    if not plotted:
        raise NothingToDraw("no run has a validation loss; nothing to plot")
    panels = _group_by_panel(plotted)
    figure = new_figure(max(7.5, 4.4 * len(panels)), 7.6 if len(panels) < 3 else 8.2)
    grid = figure.subplots(2, len(panels), squeeze=False, sharey=len({variant.panel for variant in plotted}) == 1)
    styles = _choose_styles(panels)
    for (name, members), (step_axes, time_axes) in zip(panels.items(), grid.T, strict=True):
        for axes, unit in ((step_axes, None), (time_axes, _time_unit(list(bands.values())))):
            background_variants = [
                variant for variant in plotted if variant not in members and variant.panel == members[0].panel
            ]
            for background_variant in background_variants:
                _draw(axes, bands[background_variant.name], BACKGROUND_COLOR, "-", None, unit=unit)
            for number, variant in enumerate(members):
                color, style, label = styles[variant.name]
                _draw(axes, bands[variant.name], color, style, label, unit=unit, front=len(members) - number)
            _format_axes(axes, [bands[variant.name] for variant in (*members, *background_variants)], unit=unit)
        if name:
            disable_mathtext([step_axes.set_title(name, fontsize=SMALL + 2)])
        legend = step_axes.legend(fontsize=SMALL, loc="upper right")
        disable_mathtext(legend.get_texts())
    for row in grid:
        row[0].set_ylabel("validation loss (nats, logarithmic scale)")
    several = any(len(variant.runs) > 1 for variant in plotted)
    words = f"; line: mean over {repeated}s, band: lowest to highest" if several else f"; one {repeated} each"
    disable_mathtext([figure.suptitle(f"{title}{words}")])
    return figure


def _make_band(runs: Sequence[Columns]) -> Band | None:
    losses = [
        {step: loss for step, loss in columns["val/loss"] if math.isfinite(loss) and loss > 0} for columns in runs
    ]
    times = [dict(columns["seconds"]) for columns in runs]
    if not losses:
        return None
    steps = [step for step in losses[0] if all(step in column for column in (*losses, *times))]
    if not steps:
        return None
    at = [[column[step] for column in losses] for step in steps]
    return Band(
        steps=tuple(steps),
        seconds=tuple(statistics.fmean(column[step] for column in times) for step in steps),
        mean=tuple(map(statistics.fmean, at)),
        low=tuple(map(min, at)),
        high=tuple(map(max, at)),
    )


def _time_unit(bands: Sequence[Band]) -> str:
    longest = max(band.seconds[-1] for band in bands)
    return next(unit for unit in ("hours", "minutes", "seconds") if longest >= 2 * UNITS[unit] or unit == "seconds")


def _group_by_panel(variants: Sequence[VariantCurves]) -> dict[str, list[VariantCurves]]:
    """Return the variants of each panel, by its title."""
    if len({variant.panel for variant in variants}) > 1:
        panels: dict[str, list[VariantCurves]] = {}
        for variant in variants:
            panels.setdefault(variant.panel, []).append(variant)
        return {_title_panel(panel, number): members for number, (panel, members) in enumerate(panels.items(), start=1)}
    keys = _find_varied_keys(variants)
    if len(keys) == 2 and len(variants) > 3:
        # The key with fewer values defines the panels, the best value first.
        first = min(keys, key=lambda key: len({variant.settings[key] for variant in variants}))
        values = list(dict.fromkeys(variant.settings[first] for variant in variants))
        if 1 < len(values) <= MAX_PANELS:
            return {f"{first}={v}": [variant for variant in variants if variant.settings[first] == v] for v in values}
    return {"": list(variants)}


def _find_varied_keys(variants: Sequence[VariantCurves]) -> list[str]:
    """Return the keys that all variants have and that take more than one value."""
    keys = [key for key in variants[0].settings if all(key in variant.settings for variant in variants)]
    return [key for key in keys if len({variant.settings[key] for variant in variants}) > 1]


def _title_panel(panel: str, number: int) -> str:
    """Return the title of the panel for one of several units of the loss."""
    kind = panel.partition("|")[0] or "models"
    return f"{number}: {kind}s of one text and tokenizer"


def _choose_styles(panels: dict[str, list[VariantCurves]]) -> dict[str, tuple[str, str, str]]:
    """Return color, line style and label of each variant.

    Variants that differ only in the setting of their panel have the same color and style in all panels.
    """
    styles: dict[str, tuple[str, str, str]] = {}
    numbers: dict[str, int] = {}
    grid = len(panels) > 1 and all("=" in name for name in panels)
    labels = {
        variant.name: variant.name
        if not grid
        else ", ".join(f"{k}={v}" for k, v in variant.settings.items() if f"{k}={v}" != name)
        for name, members in panels.items()
        for variant in members
    }
    for label in dict.fromkeys(labels.values()):
        numbers[label] = len(numbers)
    for name, label in labels.items():
        number = numbers[label]
        styles[name] = COLORS[number % len(COLORS)], STYLES[number % len(STYLES)], label
    return styles


def _draw(
    axes: Axes, band: Band, color: str, style: str, label: str | None, *, unit: str | None, front: int = 0
) -> None:
    x = band.steps if unit is None else tuple(seconds / UNITS[unit] for seconds in band.seconds)
    marker = "o" if len(x) <= MAX_MARKED_POINTS and label is not None else None
    axes.plot(
        x, band.mean, color=color, linestyle=style, linewidth=1.6 if label else 0.8, marker=marker, markersize=2.5,
        label=label, zorder=2 + front / 100 if label else 1,
    )  # fmt: skip
    if label is not None and band.low != band.high:
        axes.fill_between(x, band.low, band.high, color=color, alpha=0.18, linewidth=0, zorder=1.5)


def _format_axes(axes: Axes, bands: Sequence[Band], *, unit: str | None) -> None:
    axes.set_xlabel("optimizer step" if unit is None else f"{unit} of training")
    axes.set_yscale("log")
    low = min(min(band.low) for band in bands)
    high = max(
        max(top for step, top in zip(band.steps, band.high, strict=True) if step >= EARLY * band.steps[-1])
        for band in bands
    )
    axes.set_ylim(low / (high / low) ** 0.05 / 1.002, high * (high / low) ** 0.05 * 1.002)
    axes.yaxis.set_major_locator(choose_loss_ticks(low, high))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.4g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    if unit is not None:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    else:
        format_steps(axes)
    axes.grid(which="major", color=LINES)

"""Plots of a comparison show logged values, and only comparable losses share an axis."""

from itertools import product
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from tercet.checkpoint.metrics import COLUMNS, Columns, read_metrics, training_time
from tercet.plots import save
from tercet.plots.picture_file import NothingToDraw
from tercet.plots.variants import COLORS, STYLES, VariantCurves, plot_variants

STEPS = (10, 20, 30)


def run(*losses: float, pace: float = 2.0, steps: tuple[int, ...] = STEPS) -> Columns:
    columns: Columns = {name: [] for name in COLUMNS[1:]}
    columns["val/loss"] = list(zip(steps, losses, strict=False))
    columns["seconds"] = [(step, pace * step) for step in steps]
    return columns


def variant(name: str, *runs: Columns, panel: str = "language model|t|k", **settings: str) -> VariantCurves:
    return VariantCurves(name=name, settings=settings, panel=panel, runs=runs)


def lines(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each line in the legend."""
    return {
        str(line.get_label()): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }


def test_lines_show_the_mean_and_bands_the_range() -> None:
    figure = plot_variants(
        [variant("a", run(4.0, 3.0, 2.0), run(5.0, 4.0, 2.5, pace=4.0)), variant("b", run(4.0, 3.5, 3.0))], title="x"
    )
    steps, times = figure.axes
    assert lines(steps) == {"a": [(10, 4.5), (20, 3.5), (30, 2.25)], "b": [(10, 4.0), (20, 3.5), (30, 3.0)]}
    assert lines(times)["a"] == [(30.0, 4.5), (60.0, 3.5), (90.0, 2.25)]
    (band,) = steps.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert {(10.0, 4.0), (10.0, 5.0), (30.0, 2.0), (30.0, 2.5)} <= corners
    assert "band: lowest to highest" in figure.get_suptitle()
    assert times.get_xlabel() == "seconds of training"


def test_only_steps_that_all_seeds_have_count() -> None:
    figure = plot_variants([variant("a", run(4.0, 3.0, 2.0), run(6.0, 5.0, steps=(10, 20)))], title="x")
    assert lines(figure.axes[0]) == {"a": [(10, 5.0), (20, 4.0)]}


def test_long_runs_are_timed_in_minutes() -> None:
    figure = plot_variants([variant("a", run(4.0, 3.0, 2.0, pace=60.0))], title="x")
    assert figure.axes[1].get_xlabel() == "minutes of training"
    assert lines(figure.axes[1])["a"][0] == (10.0, 4.0)
    assert "one seed each" in figure.get_suptitle()


def test_a_grid_has_a_panel_for_each_value_of_the_shorter_key() -> None:
    grid = [
        variant(f"p={p}, q={q}", run(4.0, 3.0, 2.0 + p / 10 + q / 100), p=str(p), q=str(q))
        for p, q in product(range(2), range(3))
    ]
    figure = plot_variants(grid, title="x")
    top_panels = figure.axes[:2]
    assert [axes.get_title() for axes in top_panels] == ["p=0", "p=1"]
    assert [list(lines(axes)) for axes in top_panels] == [["q=0", "q=1", "q=2"]] * 2
    assert lines(top_panels[1])["q=2"][-1] == (30, 2.12)
    assert all(len(axes.get_lines()) == 6 for axes in top_panels)  # the lines of the other panel are in the background
    colors = [{line.get_label(): line.get_color() for line in axes.get_lines()[-3:]} for axes in top_panels]
    assert colors[0] == colors[1]
    assert top_panels[0].get_ylim() == top_panels[1].get_ylim()


def test_other_units_have_separate_axes() -> None:
    figure = plot_variants(
        [variant("gpt", run(2.0, 1.5, 1.0)), variant("bert", run(5.0, 4.0, 3.0), panel="masked language model|t|k")],
        title="x",
    )
    gpt, bert = figure.axes[:2]
    assert (list(lines(gpt)), list(lines(bert))) == (["gpt"], ["bert"])
    assert gpt.get_ylim() != bert.get_ylim()
    assert "masked language models" in bert.get_title()


def test_nine_lines_differ_in_color_or_style() -> None:
    nine = [variant(f"v{n}", run(4.0, 3.0, 2.0 + n / 10)) for n in range(9)]
    figure = plot_variants(nine, title="x")
    looks = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()}
    assert len(looks) == 9
    assert len({(COLORS[n % len(COLORS)], STYLES[n % len(STYLES)]) for n in range(28)}) == 28


def test_the_early_fall_does_not_flatten_the_rest() -> None:
    long = tuple(range(10, 1010, 10))
    losses = [90.0] + [3.0 - step / 1000 for step in long[1:]]
    low, high = plot_variants([variant("a", run(*losses, steps=long))], title="x").axes[0].get_ylim()
    assert 1.8 < low < 2.0
    assert 2.8 < high < 4.0


@pytest.mark.slow
def test_equal_losses_are_drawn_and_bytes_repeat(tmp_path: Path) -> None:
    for name in ("one", "other"):
        save(plot_variants([variant("$a$", run(2.0, 2.0, 2.0))], title="$x$"), tmp_path / f"{name}.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()


def test_nothing_to_draw() -> None:
    for curves in ([], [variant("a")], [variant("a", run())], [variant("a", run(float("nan"), 0.0))]):
        with pytest.raises(NothingToDraw, match="no run has a validation loss"):
            plot_variants(curves, title="x")


def test_a_diverged_line_does_not_hide_the_others() -> None:
    figure = plot_variants([variant("a", run(2.0, 1.5, 1.0)), variant("b", run(2.0, float("inf")))], title="x")
    assert list(lines(figure.axes[0])) == ["a", "b"]


def test_training_time_is_that_of_all_sessions(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(
        "step,seconds,tokens,tokens_per_second,val/loss\n1,2,64,,\n2,3,128,64,3\n3,9,192,10,\n4,10,256,60,2\n"
    )
    time = training_time(read_metrics(path))
    assert time is not None
    assert (time.seconds, time.tokens_per_second, time.steps, time.tokens) == (10.0, 60.0, 4, 256)
    path.write_text("step,val/loss\n1,2\n")
    assert training_time(read_metrics(path)) is None

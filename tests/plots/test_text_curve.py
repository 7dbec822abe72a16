"""Loss curves in the terminal: position of points, colors, and when they are omitted."""

import io
import math

import pytest

from tercet.checkpoint.metrics import COLUMNS, Columns
from tercet.plots.text_curve import PLAIN, VALIDATION, terminal_curve, text_curve


def columns(train: list[float], val: list[tuple[int, float]] | None = None) -> Columns:
    metrics: Columns = {name: [] for name in COLUMNS[1:]}
    return metrics | {"train/loss": [*enumerate(train, 1)], "val/loss": val or []}


def test_the_curve_falls_from_the_first_line_to_the_last() -> None:
    text = text_curve(columns([4 * 0.99**n for n in range(200)], [(200, 0.6)]), width=60)
    lines = text.splitlines()
    assert len(lines) == 7 + 2
    assert all(len(line) <= 60 for line in lines)
    assert 3 < float(lines[0].split()[0]) < 4
    dot_positions = [[i for i, letter in enumerate(line) if "\u2801" <= letter <= "\u28ff"] for line in lines[:7]]
    assert all(dot_positions)
    assert [min(row) for row in dot_positions] == sorted(min(row) for row in dot_positions)
    assert lines[-1].strip() == "loss: training 0.5413, validation 0.6"
    assert "\033" not in text


def test_a_point_is_the_mean_of_its_steps_on_a_logarithmic_scale() -> None:
    assert text_curve(columns([3.0, 1.0] * 480), width=36).splitlines()[0].split()[0] == "2"  # 20 steps in a bucket
    lines = text_curve(columns([100.0] * 24 + [10.0] * 23 + [1.0]), width=36, height=9).splitlines()
    third = [row for row in range(9) if "\u2801" <= lines[row].ljust(36)[11 + 18] <= "\u28ff"]
    assert third == [4]  # on a logarithmic scale 10 is halfway from 100 to 1


def test_color_distinguishes_the_two_curves() -> None:
    text = text_curve(columns([3, 2, 1.5], [(2, 2.2), (3, 1.7)]), width=50, color=True)
    assert f"{VALIDATION}validation 1.7{PLAIN}" in text


@pytest.mark.parametrize("train", [[], [2.0], [math.nan, math.inf], [0.0, -1.0]])
def test_a_curve_without_losses_is_empty(train: list[float]) -> None:
    assert text_curve(columns(train), width=80) == ""
    assert text_curve(columns([3, 2, 1]), width=20) == ""
    assert text_curve(columns([2, 2, 2]), width=40) != ""


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_the_curve_is_only_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = columns([3, 2, 1])
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert terminal_curve(metrics) == ""
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    for value in (None, ""):  # an empty value is none: https://no-color.org
        monkeypatch.delenv("NO_COLOR", raising=False) if value is None else monkeypatch.setenv("NO_COLOR", value)
        assert PLAIN in terminal_curve(metrics)
    monkeypatch.setenv("NO_COLOR", "1")
    assert PLAIN not in terminal_curve(metrics) != ""
    monkeypatch.setenv("TERM", "dumb")
    assert terminal_curve(metrics) == ""

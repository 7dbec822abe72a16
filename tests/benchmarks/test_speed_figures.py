"""Medians, quartiles and ratios of given numbers."""

import statistics

import pytest
from benchmarks.speed.figures import Spread, ratio, ratios
from benchmarks.speed.limits import limits, share
from hypothesis import given
from hypothesis import strategies as st

SPEEDS = st.floats(0.1, 1e6)


@given(st.lists(SPEEDS, min_size=1, max_size=20))
def test_spread_is_ordered_and_invertible(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)
    assert spread.median == pytest.approx(statistics.median(values))
    inverted = spread.inverse()
    assert inverted.low <= inverted.median <= inverted.high
    assert inverted.median == pytest.approx(1 / spread.median)


def test_quartiles() -> None:
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(2, 3, 4)
    with pytest.raises(ValueError, match="no rounds"):
        Spread.of([])


@given(moods=st.lists(st.floats(0.1, 10), min_size=1, max_size=9), ours=SPEEDS, theirs=SPEEDS)
def test_common_slowdown_does_not_change_the_ratio(moods: list[float], ours: float, theirs: float) -> None:
    spread = ratio([ours * mood for mood in moods], [theirs * mood for mood in moods])
    for value in (spread.low, spread.median, spread.high):
        assert value == pytest.approx(ours / theirs)


def test_ratios_are_of_the_fastest_on_each_side() -> None:
    speeds = {
        "mine": [10, 20, 30], "mine too": [12, 24, 36], "theirs": [4, 8, 12], "tuned": [6, 6, 6], "int8": [8, 9, 9],
        "floor": [900, 900, 900],
    }  # fmt: skip
    sides = {"mine": "ours", "mine too": "ours", "theirs": "readme", "tuned": "peer", "int8": "peer", "floor": "limit"}
    precisions = {name: "int8" if name == "int8" else "fp32" for name in speeds}
    result = ratios(speeds, sides, precisions)  # pyright: ignore[reportArgumentType]
    assert {label: (ratio_.ours, ratio_.theirs) for label, ratio_ in result.items()} == {
        "readme": ("mine too", "theirs"),
        "best": ("mine too", "int8"),
        "best in fp32": ("mine too", "theirs"),  # 8 is faster than 6
    }
    assert result["readme"].spread == Spread(3, 3, 3)
    assert result["best"].spread.median == pytest.approx(24 / 9)


def test_without_peers_there_is_no_ratio() -> None:
    precisions = dict.fromkeys(("mine", "floor"), "fp32")
    assert ratios({"mine": [1.0], "floor": [2.0]}, {"mine": "ours", "floor": "limit"}, precisions) == {}


def test_a_share_is_of_the_best_path_of_the_precision() -> None:
    machine = {"fp32": 200.0, "fp32 oneDNN": 400.0, "bf16": 900.0, "memory": 40.0}
    assert share(machine, precision="fp32", gflops=100, gbytes=None) == ("matmul", 0.25)
    assert share(machine, precision="bf16", gflops=450, gbytes=None) == ("matmul", 0.5)
    assert share(machine, precision="int8", gflops=None, gbytes=30) == ("memory", 0.75)
    assert share(machine, precision="fp32", gflops=None, gbytes=None) is None
    with pytest.raises(ValueError, match="1000 GFLOP/s in bf16, of which this machine does 900; measure again"):
        share(machine, precision="bf16", gflops=1000, gbytes=None)


def test_limits_are_measured() -> None:
    measured_limits = limits(bf16=False, size=64, megabytes=2)
    assert set(measured_limits) == {"fp32", "fp32 oneDNN", "memory"}
    assert all(0.01 < value < 1e6 for value in measured_limits.values())


def test_disabled_kernel_is_compared_with_tercet_only() -> None:
    speeds = {"tercet": [10, 20, 30], "tercet, without linear": [20, 20, 40], "theirs": [5, 5, 5]}
    result = ratios(
        speeds, {"tercet": "ours", "tercet, without linear": "off", "theirs": "peer"}, dict.fromkeys(speeds, "fp32")
    )
    assert result["best"].ours == "tercet"
    assert result["tercet, without linear"].theirs == "tercet, without linear"
    assert result["tercet, without linear"].spread.median == 0.75

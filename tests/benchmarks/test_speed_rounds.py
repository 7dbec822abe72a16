"""Rounds with simulated clocks: order, repetitions, failures."""

import random
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from benchmarks.speed.rounds import LIMIT, OtherProcesses, _own_seconds, compete
from hypothesis import given
from hypothesis import strategies as st

NAMES = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=5, unique=True)


class Clock:
    """A clock that advances only by simulated work."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeMeter(OtherProcesses):
    """A fake `OtherProcesses` that returns the given shares in order, and then zero."""

    def __init__(self, *shares: float) -> None:
        self.shares = list(shares)
        self.n_begun = 0

    def begin(self) -> None:
        self.n_begun += 1

    def share(self) -> float:
        return self.shares.pop(0) if self.shares else 0.0


def working(clock: Clock, seconds: float, count: float, log: list[str], name: str) -> Callable[[], float]:
    def work() -> float:
        log.append(name)
        clock.now += seconds
        return count

    return work


@given(
    names=NAMES, rounds=st.integers(1, 6), seed=st.integers(0, 1000),
    durations=st.lists(st.floats(0.01, 100), min_size=5, max_size=5),
)  # fmt: skip
def test_each_round_runs_everyone_once_and_speeds_are_counts_over_times(
    names: list[str], rounds: int, seed: int, durations: list[float]
) -> None:
    clock, log = Clock(), list[str]()
    times = dict(zip(names, durations, strict=False))
    work = {name: working(clock, times[name], 7 * times[name] * (1 + i), log, name) for i, name in enumerate(names)}
    results, failed = compete(
        work, rounds=rounds, generator=random.Random(seed), meter=FakeMeter(), clock=clock, rest=0.0
    )  # fmt: skip
    assert not failed
    assert len(results) == rounds
    assert [sorted(log[i : i + len(names)]) for i in range(0, len(log), len(names))] == [sorted(names)] * rounds
    for round_ in results:
        assert list(round_.speeds) == names
        assert round_.tries == 1
        for i, name in enumerate(names):
            assert round_.speeds[name] == pytest.approx(7 * (1 + i), rel=1e-6)


def test_the_order_changes_from_round_to_round() -> None:
    clock, log = Clock(), list[str]()
    work = {name: working(clock, 1.0, 1.0, log, name) for name in "abcd"}
    compete(work, rounds=12, generator=random.Random(3), meter=FakeMeter(), clock=clock, rest=0.0)
    orders = {tuple(log[i : i + 4]) for i in range(0, len(log), 4)}
    assert len(orders) > 6
    assert {order[0] for order in orders} == set("abcd")  # every contender comes first in some round


@given(shares=st.lists(st.floats(0, 2), max_size=12), rounds=st.integers(1, 4), repeats=st.integers(0, 3))
def test_disturbed_rounds_are_repeated_up_to_the_limit_and_the_calmest_counts(
    shares: list[float], rounds: int, repeats: int
) -> None:
    clock, log, meter = Clock(), list[str](), FakeMeter(*shares)
    results, _ = compete(
        {"a": working(clock, 1.0, 1.0, log, "a")}, rounds=rounds, generator=random.Random(0), repeats=repeats,
        meter=meter, clock=clock, rest=0.0,
    )  # fmt: skip
    expected_shares = [*shares, *[0.0] * (rounds * (repeats + 1))]
    for round_ in results:
        tries = expected_shares[: round_.tries]
        assert round_.others == min(tries)
        assert all(share > LIMIT for share in tries[:-1])  # no undisturbed round was run again
        assert tries[-1] <= LIMIT or round_.tries == repeats + 1
        assert round_.disturbed() == (min(tries) > LIMIT)
        expected_shares = expected_shares[round_.tries :]
    assert len(log) == meter.n_begun == sum(round_.tries for round_ in results)


def test_speeds_of_the_calmest_try_count() -> None:
    clock = Clock()
    durations = iter([4.0, 2.0, 8.0])

    def work() -> float:
        clock.now += next(durations)
        return 16.0

    results, _ = compete(
        {"a": work},
        rounds=1,
        generator=random.Random(0),
        repeats=2,
        meter=FakeMeter(0.9, 0.3, 0.5),
        clock=clock,
        rest=0.0,
    )
    assert results[0].speeds == {"a": 8.0}
    assert (results[0].others, results[0].tries) == (0.3, 3)
    assert results[0].disturbed()


@pytest.mark.parametrize("at", [1, 2, 5])
def test_failing_contender_leaves_and_others_continue(at: int) -> None:
    clock, log = Clock(), list[str]()
    calls = 0

    def failing() -> float:
        nonlocal calls
        calls += 1
        if calls == at:
            raise MemoryError("no room\nat all")
        clock.now += 1.0
        return 1.0

    work = {"a": working(clock, 1.0, 5.0, log, "a"), "bad": failing, "c": working(clock, 1.0, 7.0, log, "c")}
    results, failed = compete(work, rounds=6, generator=random.Random(1), meter=FakeMeter(), clock=clock, rest=0.0)
    assert failed == {"bad": "MemoryError: no room"}
    assert calls == at  # it is not called again
    assert [round_.speeds for round_ in results] == [{"a": 5.0, "c": 7.0}] * 6


def test_at_least_one_round() -> None:
    with pytest.raises(ValueError, match="rounds=0 must be at least 1"):
        compete({"a": lambda: 1.0}, rounds=0, generator=random.Random(0))


def test_use_of_others_is_not_negative_and_excludes_own_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks.speed import rounds

    busy, own_seconds = iter([100.0, 103.5]), iter([10.0, 13.0])
    monkeypatch.setattr(rounds, "_busy", lambda: next(busy))
    monkeypatch.setattr(rounds, "_own_seconds", lambda: next(own_seconds))
    times = iter([0.0, 5.0])
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: next(times))
    meter = OtherProcesses()
    meter.begin()
    assert meter.share() == pytest.approx(0.1)


def test_the_real_counters_count() -> None:
    meter = OtherProcesses()
    meter.begin()
    assert sum(range(200_000)) > 0
    assert meter.share() >= 0.0


@pytest.mark.slow
def test_use_of_child_processes_counts_as_own_use() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            time.sleep(0.3)
            start = _own_seconds()
            time.sleep(0.5)
            used = _own_seconds() - start
        finally:
            child.kill()
    assert used > 0.05

"""The measurement of one row: set up contenders, check their answers, warm up, time them in rounds, measure memory."""

import gc
import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import psutil
import torch
from benchmarks.speed.contender import SAME, Contender, apart
from benchmarks.speed.figures import Ratio, Spread, ratios
from benchmarks.speed.limits import clock_of, limits, limits_of_gpu, share
from benchmarks.speed.machine import held_memory, peak_above
from benchmarks.speed.own_process import found, placed
from benchmarks.speed.rounds import LIMIT, REST, Others, Round, compete, reason
from benchmarks.speed.row import Asked, Lineup, Row
from benchmarks.speed.without import lineup_of
from torch import Tensor

READY = 0.75  # share of a row's budget for setting up; the rest is for the rounds
SMALL = {"size": 64, "megabytes": 2}  # sizes of the limits' measurements in tests

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Durations of the measurement of a row.

    Args:
        rounds: Number of rounds.
        seconds: Approximate time of each contender per round; at least one unit of work.
        repeats: Maximum number of repetitions of a disturbed round.
        seed: Seed of the order in each round.
        budget: Seconds of a row, after which no further round starts; after three quarters of it, no further contender
            is set up. None for no limit.
    """

    rounds: int = 7
    seconds: float = 2.0
    repeats: int = 2
    seed: int = 0
    budget: float | None = None


@dataclass
class Result:
    """The result of a row.

    Attributes:
        limits: Limits of the machine, the better of two measurements, before and after the rounds.
        figures: Figures of each contender that completed.
        ratios: Speed of Tercet compared with other libraries; see `figures.ratios`.
        rounds: All rounds, in their order.
        left_out: Contenders that did not take part, with the reason.
        failed: Contenders that failed, with the reason.
    """

    name: str
    title: str
    unit: str
    seconds_each: bool
    limits: dict[str, float] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    ratios: dict[str, Ratio] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def disturbed(self) -> int:
        return sum(one.disturbed() for one in self.rounds)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "disturbed": self.disturbed}

    @classmethod
    def begun(cls, row: Row) -> "Result":
        """Return a result without figures."""
        return cls(row.name, row.title, row.unit, row.seconds_each)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Result":
        """Return the result from which `plain` was made."""
        parts = {name: value for name, value in plain.items() if name != "disturbed"}
        parts["ratios"] = {
            label: Ratio(one["ours"], one["theirs"], Spread(**one["spread"])) for label, one in plain["ratios"].items()
        }
        parts["rounds"] = [Round(**one) for one in plain["rounds"]]
        return cls(**parts)


def measure(
    row: Row,
    asked: Asked,
    timing: Timing,
    say: Say,
    *,
    memory: Callable[[str, str], int | None] | None = None,
    others: Others | None = None,
    clock: Callable[[], float] | None = None,
    rest: float = REST,
    of_machine: Callable[[], dict[str, float]] | None = None,
) -> Result:
    """Measure a row.

    Args:
        memory: Function that returns the peak memory of a row's contender, by their names; None to skip it.
        others: As in `compete`; tests replace it.
        clock: As in `compete`; tests replace it.
        rest: As in `compete`; tests replace it.
        of_machine: Function that measures the limits; tests replace it.
    """
    result = Result.begun(row)
    clock = clock or clock_of(asked.place)
    budget = float("inf") if timing.budget is None else timing.budget
    begun = clock()
    say(f"{row.name}: {row.title}")
    free = psutil.virtual_memory().available / 2**30
    if asked.scale == "full" and free < row.gigabytes:
        result.left_out["all"] = f"needs about {row.gigabytes:.0f} GiB of memory, and {free:.1f} are free"
        return _told(result, say)
    try:
        lineup = lineup_of(row, asked)
    except Exception as error:  # a row that cannot be created must not end the run
        result.failed["all"] = reason(error)
        return _told(result, say)
    lineup.keep(asked.only)
    lineup.contenders = placed(lineup.contenders, row, asked)
    result.left_out, result.notes = lineup.left_out, lineup.notes
    sizes = SMALL if asked.scale == "tiny" else {}
    measured = partial(limits_of_gpu if asked.place.type == "cuda" else partial(limits, bf16=asked.bf16), **sizes)
    look = of_machine or measured
    result.limits = look()
    ready, units, ready_in, peaks = _ready(lineup, timing, result, say, clock, begun + READY * budget)
    if ready:
        result.rounds, failed = compete(
            {name: _timed(one, units[name]) for name, one in ready.items()},
            rounds=timing.rounds, generator=random.Random(timing.seed), repeats=timing.repeats, others=others,
            clock=clock, rest=rest, deadline=begun + budget,
        )  # fmt: skip
        after = look()  # a disturbance of one measurement may not have affected the rounds
        result.limits = {name: max(value, after[name]) for name, value in result.limits.items()}
        result.failed |= failed
        ready = {name: one for name, one in ready.items() if name not in failed}
    speeds = {name: [one.speeds[name] for one in result.rounds] for name in ready}
    for name, one in list(ready.items()):
        try:
            figure = _figure(one, speeds[name], result.limits, ready_in[name], units[name])
            result.figures[name] = {**figure, "peak_memory": peaks[name]}
        except ValueError as error:
            result.failed[name] = reason(error)
            del ready[name], speeds[name]
    result.ratios = ratios(
        speeds,
        {name: one.side for name, one in ready.items()},
        {name: one.settings.precision for name, one in ready.items()},
    )
    for one in lineup.contenders:
        _close(one)
    gc.collect()
    if asked.place.type == "cuda":
        torch.cuda.empty_cache()
        torch.compiler.reset()
    if memory is not None and row.memory:
        for name, figure in result.figures.items():
            figure["peak_memory"] = memory(row.name, name)
    return _told(result, say)


def _ready(
    lineup: Lineup, timing: Timing, result: Result, say: Say, clock: Callable[[], float], deadline: float
) -> tuple[dict[str, Contender], dict[str, int], dict[str, float], dict[str, int | None]]:
    """Return the contenders that were set up and give the same answer as Tercet, and their measurements.

    These are the units that each does per round, the seconds of its setup, and the GPU memory of its second unit of
    work.
    """
    ready, units, took, peaks = dict[str, Contender](), dict[str, int](), dict[str, float](), dict[str, int | None]()
    expected: Tensor | None = None
    for one in lineup.contenders:
        begun = clock()
        if ready and begun > deadline:
            result.left_out[one.name] = "the row's time was used up"
            continue
        held, most = held_memory(one.device), SAME[one.device.type]
        try:
            one.setup()
            answer = one.answer()
            if answer is not None and expected is None and one.side == "ours":
                expected = answer
            elif answer is not None and expected is not None and (distance := apart(expected, answer)) > most:
                raise ValueError(f"its answers are not ours: {distance:.2g} apart, where {most:g} is the most")
            with one.settings.in_force():
                one.run(1)  # chooses kernels, compiles
                took[one.name] = clock() - begun
                held_memory(one.device)
                begun = clock()
                one.run(1)
                peaks[one.name] = peak_above(one.device, held)
                each = max(clock() - begun, 1e-9)
        except Exception as error:  # a library that fails is reported, and the others continue
            result.failed[one.name] = reason(error)
            _close(one)
            continue
        ready[one.name] = one
        units[one.name] = max(1, min(100_000, round(timing.seconds / each)))
        checked = "" if answer is None else ", same answer" if one.side != "ours" else ""
        how = f" ({one.told()})" if one.told() else ""
        say(f"  {one.name:36} ready in {took[one.name]:5.1f} s{checked}{how}")
    return ready, units, took, peaks


def _timed(one: Contender, n: int) -> Callable[[], float]:
    def work() -> float:
        with one.settings.in_force():
            return one.run(n)

    return work


def _figure(
    one: Contender, speeds: list[float], limits: Mapping[str, float], ready_in: float, units: int
) -> dict[str, Any]:
    spread = Spread.of(speeds)
    gflops = None if one.flops_per_token is None else 1e-9 * spread.median * one.flops_per_token
    gbytes = None if one.bytes_per_token is None else 1e-9 * spread.median * one.bytes_per_token
    bound = share(dict(limits), precision=one.settings.precision, gflops=gflops, gbytes=gbytes)
    quality = getattr(one, "quality", None)
    return {
        "side": one.side,
        "settings": one.told(),
        "precision": one.settings.precision,
        "speed": asdict(spread),
        "gflops": gflops,
        "gbytes": gbytes,
        "bound": None if bound is None else bound[0],
        "share": None if bound is None else bound[1],
        "ready_seconds": ready_in,
        "units_a_round": units,
        "quality": None if quality is None else quality(),
    }


def _close(one: Contender) -> None:
    with suppress(AttributeError):  # a contender without setup holds nothing
        one.close()


def _told(result: Result, say: Say) -> Result:
    for note in result.notes:
        say(f"  {note}")
    for name, why in result.left_out.items():
        say(f"  left out: {name}: {why}")
    for name, why in result.failed.items():
        say(f"  failed: {name}: {why}")
    for label, one in result.ratios.items():
        say(
            f"  {one.ours} is {one.spread.median:.2f} x {one.theirs} ({'worth' if label == one.theirs else label}; "
            f"{one.spread.low:.2f} to {one.spread.high:.2f})"
        )
    if result.disturbed:
        say(
            f"  {result.disturbed} of {len(result.rounds)} rounds disturbed: something else took more than "
            f"{LIMIT:.0%} of a core, at most {max(one.others for one in result.rounds):.0%}"
        )
    return result


def alone(row: Row, asked: Asked, name: str) -> int:
    """Return the peak memory of one contender; run in a process that does nothing else."""
    one = found(row, asked, name)
    one.setup()
    with one.settings.in_force():
        one.run(2)
    return one.peak_memory()


def in_own_process(arguments: list[str], say: Say, *, timeout: float = 600.0) -> Callable[[str, str], int | None]:
    """Return a function that measures a contender's peak memory; `arguments` are those of this run."""

    def peak(row: str, name: str) -> int | None:
        command = [sys.executable, "-m", "benchmarks.speed", row, "--alone", name, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
            return int(json.loads(done.stdout.strip().splitlines()[-1])["peak_memory"])
        except (subprocess.TimeoutExpired, ValueError, IndexError, KeyError) as error:
            say(f"  no peak memory of {name}: {reason(error)}")
            return None

    return peak

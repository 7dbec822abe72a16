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
from benchmarks.speed.contender import ALLOWED_DIFFERENCE, Contender, max_difference
from benchmarks.speed.figures import Ratio, Spread, ratios
from benchmarks.speed.limits import device_clock, gpu_limits, limits, share
from benchmarks.speed.machine import held_memory, peak_above
from benchmarks.speed.own_process import find_contender, place_contenders
from benchmarks.speed.rounds import LIMIT, REST, OtherProcesses, Round, compete, reason
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.without import full_lineup
from torch import Tensor

READY = 0.75  # share of a row's budget for setting up; the rest is for the rounds
SMALL = {"size": 64, "megabytes": 2}  # sizes of the limits' measurements in tests

Log = Callable[[str], None]


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
        return sum(round_.disturbed() for round_ in self.rounds)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "disturbed": self.disturbed}

    @classmethod
    def empty(cls, row: Row) -> "Result":
        """Return a result without figures."""
        return cls(row.name, row.title, row.unit, row.seconds_each)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Result":
        """Return the result from which `plain` was made."""
        parts = {name: value for name, value in plain.items() if name != "disturbed"}
        parts["ratios"] = {
            label: Ratio(ratio["ours"], ratio["theirs"], Spread(**ratio["spread"]))
            for label, ratio in plain["ratios"].items()
        }
        parts["rounds"] = [Round(**round_) for round_ in plain["rounds"]]
        return cls(**parts)


def measure(
    row: Row,
    options: Options,
    timing: Timing,
    log: Log,
    *,
    memory: Callable[[str, str], int | None] | None = None,
    meter: OtherProcesses | None = None,
    clock: Callable[[], float] | None = None,
    rest: float = REST,
    measure_limits: Callable[[], dict[str, float]] | None = None,
) -> Result:
    """Measure a row.

    Args:
        memory: Function that returns the peak memory of a row's contender, by their names; None to skip it.
        meter: As in `compete`; tests replace it.
        clock: As in `compete`; tests replace it.
        rest: As in `compete`; tests replace it.
        measure_limits: Function that measures the limits; tests replace it.
    """
    result = Result.empty(row)
    clock = clock or device_clock(options.place)
    budget = float("inf") if timing.budget is None else timing.budget
    start = clock()
    log(f"{row.name}: {row.title}")
    free = psutil.virtual_memory().available / 2**30
    if options.scale == "full" and free < row.gigabytes:
        result.left_out["all"] = f"needs about {row.gigabytes:.0f} GiB of memory, and {free:.1f} are free"
        return _report(result, log)
    try:
        lineup = full_lineup(row, options)
    except Exception as error:  # a row that cannot be created must not end the run
        result.failed["all"] = reason(error)
        return _report(result, log)
    lineup.keep(options.only)
    lineup.contenders = place_contenders(lineup.contenders, row, options)
    result.left_out, result.notes = lineup.left_out, lineup.notes
    sizes = SMALL if options.scale == "tiny" else {}
    default_limits = partial(
        gpu_limits if options.place.type == "cuda" else partial(limits, bf16=options.bf16), **sizes
    )
    look = measure_limits or default_limits
    result.limits = look()
    ready, units, setup_seconds, peaks = _ready(lineup, timing, result, log, clock, start + READY * budget)
    if ready:
        result.rounds, failed = compete(
            {name: _make_work(contender, units[name]) for name, contender in ready.items()},
            rounds=timing.rounds, generator=random.Random(timing.seed), repeats=timing.repeats, meter=meter,
            clock=clock, rest=rest, deadline=start + budget,
        )  # fmt: skip
        limits_after = look()  # a disturbance of one measurement may not have affected the rounds
        result.limits = {name: max(value, limits_after[name]) for name, value in result.limits.items()}
        result.failed |= failed
        ready = {name: contender for name, contender in ready.items() if name not in failed}
    speeds = {name: [round_.speeds[name] for round_ in result.rounds] for name in ready}
    for name, contender in list(ready.items()):
        try:
            figure = _figure(contender, speeds[name], result.limits, setup_seconds[name], units[name])
            result.figures[name] = {**figure, "peak_memory": peaks[name]}
        except ValueError as error:
            result.failed[name] = reason(error)
            del ready[name], speeds[name]
    result.ratios = ratios(
        speeds,
        {name: contender.side for name, contender in ready.items()},
        {name: contender.settings.precision for name, contender in ready.items()},
    )
    for contender in lineup.contenders:
        _close(contender)
    gc.collect()
    if options.place.type == "cuda":
        torch.cuda.empty_cache()
        torch.compiler.reset()
    if memory is not None and row.memory:
        for name, figure in result.figures.items():
            figure["peak_memory"] = memory(row.name, name)
    return _report(result, log)


def _ready(
    lineup: Lineup, timing: Timing, result: Result, log: Log, clock: Callable[[], float], deadline: float
) -> tuple[dict[str, Contender], dict[str, int], dict[str, float], dict[str, int | None]]:
    """Return the contenders that were set up and give the same answer as Tercet, and their measurements.

    These are the units that each does per round, the seconds of its setup, and the GPU memory of its second unit of
    work.
    """
    ready, units, setup_seconds, peaks = (
        dict[str, Contender](),
        dict[str, int](),
        dict[str, float](),
        dict[str, int | None](),
    )
    expected: Tensor | None = None
    for contender in lineup.contenders:
        start = clock()
        if ready and start > deadline:
            result.left_out[contender.name] = "the row's time was used up"
            continue
        held_bytes, tolerance = held_memory(contender.device), ALLOWED_DIFFERENCE[contender.device.type]
        try:
            contender.setup()
            answer = contender.answer()
            if answer is not None and expected is None and contender.side == "ours":
                expected = answer
            elif (
                answer is not None
                and expected is not None
                and (distance := max_difference(expected, answer)) > tolerance
            ):
                raise ValueError(f"its answers are not ours: {distance:.2g} apart, where {tolerance:g} is the most")
            with contender.settings.apply():
                contender.run(1)  # chooses kernels, compiles
                setup_seconds[contender.name] = clock() - start
                held_memory(contender.device)
                start = clock()
                contender.run(1)
                peaks[contender.name] = peak_above(contender.device, held_bytes)
                unit_seconds = max(clock() - start, 1e-9)
        except Exception as error:  # a library that fails is reported, and the others continue
            result.failed[contender.name] = reason(error)
            _close(contender)
            continue
        ready[contender.name] = contender
        units[contender.name] = max(1, min(100_000, round(timing.seconds / unit_seconds)))
        answer_note = "" if answer is None else ", same answer" if contender.side != "ours" else ""
        settings_note = f" ({contender.describe()})" if contender.describe() else ""
        log(f"  {contender.name:36} ready in {setup_seconds[contender.name]:5.1f} s{answer_note}{settings_note}")
    return ready, units, setup_seconds, peaks


def _make_work(contender: Contender, n: int) -> Callable[[], float]:
    def work() -> float:
        with contender.settings.apply():
            return contender.run(n)

    return work


def _figure(
    contender: Contender, speeds: list[float], limits: Mapping[str, float], setup_seconds: float, units: int
) -> dict[str, Any]:
    spread = Spread.of(speeds)
    gflops = None if contender.flops_per_token is None else 1e-9 * spread.median * contender.flops_per_token
    gbytes = None if contender.bytes_per_token is None else 1e-9 * spread.median * contender.bytes_per_token
    bound = share(dict(limits), precision=contender.settings.precision, gflops=gflops, gbytes=gbytes)
    quality = getattr(contender, "quality", None)
    return {
        "side": contender.side,
        "settings": contender.describe(),
        "precision": contender.settings.precision,
        "speed": asdict(spread),
        "gflops": gflops,
        "gbytes": gbytes,
        "bound": None if bound is None else bound[0],
        "share": None if bound is None else bound[1],
        "ready_seconds": setup_seconds,
        "units_a_round": units,
        "quality": None if quality is None else quality(),
    }


def _close(contender: Contender) -> None:
    with suppress(AttributeError):  # a contender without setup holds nothing
        contender.close()


def _report(result: Result, log: Log) -> Result:
    for note in result.notes:
        log(f"  {note}")
    for name, why in result.left_out.items():
        log(f"  left out: {name}: {why}")
    for name, why in result.failed.items():
        log(f"  failed: {name}: {why}")
    for label, ratio in result.ratios.items():
        log(
            f"  {ratio.ours} is {ratio.spread.median:.2f} x {ratio.theirs} "
            f"({'worth' if label == ratio.theirs else label}; {ratio.spread.low:.2f} to {ratio.spread.high:.2f})"
        )
    if result.disturbed:
        log(
            f"  {result.disturbed} of {len(result.rounds)} rounds disturbed: something else took more than "
            f"{LIMIT:.0%} of a core, at most {max(round_.others for round_ in result.rounds):.0%}"
        )
    return result


def measure_peak_memory(row: Row, options: Options, name: str) -> int:
    """Return the peak memory of one contender; run in a process that does nothing else."""
    contender = find_contender(row, options, name)
    contender.setup()
    with contender.settings.apply():
        contender.run(2)
    return contender.peak_memory()


def memory_meter(arguments: list[str], log: Log, *, timeout: float = 600.0) -> Callable[[str, str], int | None]:
    """Return a function that measures a contender's peak memory; `arguments` are those of this run."""

    def peak(row: str, name: str) -> int | None:
        command = [sys.executable, "-m", "benchmarks.speed", row, "--alone", name, *arguments]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
            return int(json.loads(process.stdout.strip().splitlines()[-1])["peak_memory"])
        except (subprocess.TimeoutExpired, ValueError, IndexError, KeyError) as error:
            log(f"  no peak memory of {name}: {reason(error)}")
            return None

    return peak

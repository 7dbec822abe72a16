"""Rounds of contenders: each round runs all of them in a random order, and is repeated if it was disturbed.

A round is disturbed if other processes than this one and its children used more than 8 % of a core during it. The
number of repetitions is limited: then the calmest try counts, and the table reports that it was disturbed.
"""

import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

LIMIT = 0.08  # of a core
REST = 0.25  # seconds between contenders: idle OpenMP threads spin for a while, and would use the core of the next one

Work = Callable[[], float]  # does a contender's work of a round, and returns its number of tokens


@dataclass(frozen=True)
class Round:
    """One round.

    Args:
        speeds: Units per second of each contender.
        others: CPU use of all other processes during the round, in cores.
        tries: Number of times that the round was run.
    """

    speeds: dict[str, float]
    others: float
    tries: int = 1

    def disturbed(self, limit: float = LIMIT) -> bool:
        return self.others > limit


class OtherProcesses:
    """CPU use of all other processes since `begin`, in cores; time stolen by a hypervisor counts."""

    def begin(self) -> None:
        self._start = _busy(), _own_seconds(), time.perf_counter()

    def share(self) -> float:
        busy, own_seconds, clock = self._start
        seconds = time.perf_counter() - clock
        return max(0.0, (_busy() - busy) - (_own_seconds() - own_seconds)) / max(seconds, 1e-9)


def _busy() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - _guests(times)


def _guests(times: object) -> float:
    """Return the time of guests, which is counted as user time too."""
    return getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)


def _own_seconds() -> float:
    """Return the CPU time of this process, of its ended children, and of its running children."""
    times = os.times()
    mine = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since, and is among the ended children
            theirs = child.cpu_times()
            mine += theirs.user + theirs.system
    return mine


def compete(
    work: Mapping[str, Work],
    *,
    rounds: int,
    generator: random.Random,
    repeats: int = 2,
    limit: float = LIMIT,
    meter: OtherProcesses | None = None,
    clock: Callable[[], float] = time.perf_counter,
    rest: float = REST,
    deadline: float = float("inf"),
) -> tuple[list[Round], dict[str, str]]:
    """Return the rounds of the contenders that completed all of them, and the reason for each of the others.

    Args:
        repeats: Maximum number of repetitions of a disturbed round.
        meter: Meter of other CPU use; tests replace it.
        clock: Clock in seconds; tests replace it.
        rest: Seconds of sleep before each contender.
        deadline: Time of the clock after which no further round starts, except for the first.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} must be at least 1")
    meter = OtherProcesses() if meter is None else meter
    live, failed = dict(work), dict[str, str]()
    completed: list[Round] = []
    for _ in range(rounds):
        if completed and clock() > deadline:
            break
        tries: list[Round] = []
        while len(tries) <= repeats:
            order = list(live)
            generator.shuffle(order)
            speeds: dict[str, float] = {}
            meter.begin()
            for name in order:
                time.sleep(rest)
                start = clock()
                try:
                    count = live[name]()
                except Exception as error:  # a failure must not affect the figures of the others
                    failed[name] = reason(error)
                    del live[name]
                    continue
                speeds[name] = count / max(clock() - start, 1e-12)
            tries.append(Round({name: speeds[name] for name in work if name in speeds}, meter.share()))
            if not tries[-1].disturbed(limit):
                break
        calmest = min(tries, key=lambda round_: round_.others)
        completed.append(Round(calmest.speeds, calmest.others, len(tries)))
    whole = [
        Round({n: round_.speeds[n] for n in round_.speeds if n in live}, round_.others, round_.tries)
        for round_ in completed
    ]
    return whole, failed


def reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}".rstrip(": ")

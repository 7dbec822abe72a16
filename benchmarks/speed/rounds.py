"""Contenders in turns: each round runs all of them in a random order, and is run again where something disturbed it.

A round is disturbed where anything but this process (and what it started) took more than 8 % of a core meanwhile.
Repeating has a limit: then the calmest of the tries counts, and the table says that it was not calm.
"""

import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

LIMIT = 0.08  # of a core
REST = 0.25  # seconds between contenders: idle OpenMP threads spin for a while, and would take the next one's core

Work = Callable[[], float]  # does a contender's share of a round; how many tokens that was


@dataclass(frozen=True)
class Round:
    """Args:
    speeds: units a second of each contender.
    others: what everything else took meanwhile, in cores.
    tries: how often the round was run.
    """

    speeds: dict[str, float]
    others: float
    tries: int = 1

    def disturbed(self, limit: float = LIMIT) -> bool:
        return self.others > limit


class Others:
    """What everything but us takes of the machine, in cores, since `begin`; a hypervisor's theft counts."""

    def begin(self) -> None:
        self._before = _busy(), _own(), time.perf_counter()

    def share(self) -> float:
        busy, own, clock = self._before
        seconds = time.perf_counter() - clock
        return max(0.0, (_busy() - busy) - (_own() - own)) / max(seconds, 1e-9)


def _busy() -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - _guests(times)


def _guests(times: object) -> float:
    """Time of guests is counted as user time too."""
    return getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)


def _own() -> float:
    """Ours, that of processes we started and waited for, and that of those which are still at work."""
    times = os.times()
    mine = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since, and is among those waited for
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
    others: Others | None = None,
    clock: Callable[[], float] = time.perf_counter,
    rest: float = REST,
    deadline: float = float("inf"),
) -> tuple[list[Round], dict[str, str]]:
    """The rounds of those that went through all of them, and why each of the rest did not.

    Args:
        repeats: how often a disturbed round is run again, at most.
        others: tells how much anything else took; `clock` tells the time. Tests bring their own.
        rest: seconds of sleep before each contender.
        deadline: the clock's time after which no further round begins, but for the first.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} must be at least 1")
    others = Others() if others is None else others
    live, failed = dict(work), dict[str, str]()
    done: list[Round] = []
    for _ in range(rounds):
        if done and clock() > deadline:
            break
        tries: list[Round] = []
        while len(tries) <= repeats:
            order = list(live)
            generator.shuffle(order)
            speeds: dict[str, float] = {}
            others.begin()
            for name in order:
                time.sleep(rest)
                begun = clock()
                try:
                    count = live[name]()
                except Exception as error:  # one that fails must not take the others' figures along
                    failed[name] = reason(error)
                    del live[name]
                    continue
                speeds[name] = count / max(clock() - begun, 1e-12)
            tries.append(Round({name: speeds[name] for name in work if name in speeds}, others.share()))
            if not tries[-1].disturbed(limit):
                break
        calmest = min(tries, key=lambda one: one.others)
        done.append(Round(calmest.speeds, calmest.others, len(tries)))
    whole = [Round({n: one.speeds[n] for n in one.speeds if n in live}, one.others, one.tries) for one in done]
    return whole, failed


def reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}".rstrip(": ")

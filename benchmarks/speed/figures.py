"""Figures from rounds: medians, quartiles, and ratios computed within each round.

    ratio = median over rounds of  speed of ours in the round / speed of theirs in the same round

The speed of a machine changes from round to round and affects both, so a ratio within a round varies less than its two
speeds.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.speed.contender import SIGN, Side


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of some numbers."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not values:
            raise ValueError("no rounds, so no median; ask for at least one")
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)

    def inverse(self) -> "Spread":
        """Return the spread of seconds per unit from that of units per second."""
        return Spread(1 / self.high, 1 / self.median, 1 / self.low)


@dataclass(frozen=True)
class Ratio:
    ours: str
    theirs: str
    spread: Spread


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    return Spread.of([our_speed / their_speed for our_speed, their_speed in zip(ours, theirs, strict=True)])


def ratios(
    speeds: Mapping[str, Sequence[float]], sides: Mapping[str, Side], precisions: Mapping[str, str]
) -> dict[str, Ratio]:
    """Compare Tercet's fastest with a library as its README runs it ("readme") and with the fastest of all ("best").

    Tercet is also compared with itself with a kernel disabled, under the name of the latter. If both sides have
    contenders in fp32 and in other precisions, they are also compared in fp32 only ("best in fp32"). The fastest
    contender has the highest median.
    """

    def fastest(*allowed_sides: Side, precision: str | None = None) -> str | None:
        candidates = [
            name
            for name in speeds
            if sides[name] in allowed_sides and (precision is None or precisions[name] == precision)
        ]  # fmt: skip
        return max(candidates, key=lambda name: statistics.median(speeds[name]), default=None)

    result: dict[str, Ratio] = {}

    def add_ratio(label: str, ours: str | None, theirs: str | None) -> None:
        if ours is not None and theirs is not None:
            result[label] = Ratio(ours, theirs, ratio(speeds[ours], speeds[theirs]))

    ours = fastest("ours")
    add_ratio("readme", ours, fastest("readme"))
    add_ratio("best", ours, fastest("readme", "peer"))
    if len({precisions[name] for name in speeds}) > 1:
        add_ratio("best in fp32", fastest("ours", precision="fp32"), fastest("readme", "peer", precision="fp32"))
    for name in speeds:
        if sides[name] == "off":
            add_ratio(name, name.partition(SIGN)[0], name)
    return result

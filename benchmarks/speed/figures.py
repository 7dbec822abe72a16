"""From rounds to figures: medians, quartiles, and ratios formed inside each round.

    ratio = median over rounds of  speed of ours in the round / speed of theirs in the same round

A machine's moods change from round to round and fall on both, so a ratio inside a round moves less than its two speeds.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.speed.contender import SIGN, Side


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers, and the middle half of them."""

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
        """Of seconds, where this is of units a second."""
        return Spread(1 / self.high, 1 / self.median, 1 / self.low)


@dataclass(frozen=True)
class Ratio:
    ours: str
    theirs: str
    spread: Spread


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


def ratios(
    speeds: Mapping[str, Sequence[float]], sides: Mapping[str, Side], precisions: Mapping[str, str]
) -> dict[str, Ratio]:
    """Our fastest beside a peer as its README runs it ("readme") and beside the fastest of all peers ("best").

    Ours beside itself with a kernel off, under the name of the latter.

    Where both sides have contenders in fp32 and others too, also beside each other in fp32 alone ("best in fp32").
    Fastest is who has the highest median.
    """

    def fastest(*wanted: Side, precision: str | None = None) -> str | None:
        there = [
            name
            for name in speeds
            if sides[name] in wanted and (precision is None or precisions[name] == precision)
        ]  # fmt: skip
        return max(there, key=lambda name: statistics.median(speeds[name]), default=None)

    found: dict[str, Ratio] = {}

    def put(label: str, ours: str | None, theirs: str | None) -> None:
        if ours is not None and theirs is not None:
            found[label] = Ratio(ours, theirs, ratio(speeds[ours], speeds[theirs]))

    ours = fastest("ours")
    put("readme", ours, fastest("readme"))
    put("best", ours, fastest("readme", "peer"))
    if len({precisions[name] for name in speeds}) > 1:
        put("best in fp32", fastest("ours", precision="fp32"), fastest("readme", "peer", precision="fp32"))
    for name in speeds:
        if sides[name] == "off":
            put(name, name.partition(SIGN)[0], name)
    return found

"""Downsample curves to the pixels of a chart.

Each point contains the lowest and the highest value of its steps, so that a spike of one step in 100,000 stays visible.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class CurvePoints:
    """A downsampled curve.

    Attributes:
        x: (P) Position of each bucket: the middle between its first and its last point.
        low, high, mean: (P) Lowest, highest and mean value of each bucket.
    """

    x: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray

    def to_plain(self) -> dict[str, list[float]]:
        """Return lists of numbers with seven significant digits, which is more than a screen can show."""
        columns = {"x": self.x, "low": self.low, "high": self.high, "mean": self.mean}
        return {name: [float(f"{value:.7g}") for value in values.tolist()] for name, values in columns.items()}


def downsample(
    x: np.ndarray, y: np.ndarray, *, start: float, end: float, buckets: int, log: bool = False
) -> CurvePoints:
    """Return the curve between `start` and `end` with one point beyond each end, so that lines reach the edges.

    Args:
        x: (N) Positions in ascending order.
        y: (N) Values; values that are not finite are omitted.
        start, end: Range of the axis.
        buckets: Maximum number of points within the range. If the range and the two points beyond it have at most
            `buckets` + 2 points, all points are returned unchanged.
        log: If True, the axis of `x` is logarithmic, and the buckets are equally wide on this axis.
    """
    is_finite = np.isfinite(x) & np.isfinite(y)
    if log:
        is_finite &= x > 0
        start = max(start, 1e-12)
    x, y = x[is_finite], y[is_finite]
    first, last = np.searchsorted(x, start, "left"), np.searchsorted(x, end, "right")
    before, after = max(0, int(first) - 1), min(len(x), int(last) + 1)
    inner = slice(int(first), int(last))
    if after - before <= buckets + 2:
        rows = slice(before, after)
        return CurvePoints(x=x[rows], low=y[rows], high=y[rows], mean=y[rows])
    scale = np.log if log else np.asarray
    place = (scale(x[inner]) - scale(start)) / (scale(end) - scale(start))
    number = np.minimum((buckets * place).astype(np.int64), buckets - 1)
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    counts = np.diff(starts, append=len(number))
    bucket_x, value = x[inner], y[inner]
    middle = (bucket_x[starts] + bucket_x[starts + counts - 1]) / 2
    edges = (x[before : int(first)], x[int(last) : after])
    ends = (y[before : int(first)], y[int(last) : after])

    def join(values: np.ndarray, outer: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return np.concatenate((outer[0], values, outer[1]))

    return CurvePoints(
        x=join(middle, edges),
        low=join(np.minimum.reduceat(value, starts), ends),
        high=join(np.maximum.reduceat(value, starts), ends),
        mean=join(np.add.reduceat(value, starts) / counts, ends),
    )

"""Statistics of lengths and of labels that are numbers."""

from array import array
from collections import Counter
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Statistics of lengths. At least half of the texts are at most `median` long, and at least 95 % at most `p95`."""

    total: int
    min: int
    median: int
    p95: int
    max: int

    @staticmethod
    def of(counts: Counter[int]) -> "Lengths":
        """Return the statistics from the number of texts of each length; all zero if there are none."""
        values = np.array(sorted(counts) or [0], dtype=np.int64)
        numbers = np.array([counts[value] for value in values.tolist()], dtype=np.int64)
        cumulative = np.cumsum(numbers)
        median, p95 = (int(values[np.searchsorted(cumulative, share * cumulative[-1])]) for share in (0.5, 0.95))
        total = int((values * numbers).sum())
        return Lengths(total=total, min=int(values[0]), median=median, p95=p95, max=int(values[-1]))


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Statistics of labels that are numbers. `std` is that of the population, not of a sample."""

    mean: float
    std: float
    min: float
    median: float
    max: float

    @staticmethod
    def of(numbers: "array[float]") -> "Numbers":
        values = np.frombuffer(numbers)
        mean, std, low, high = (float(x) for x in (values.mean(), values.std(), values.min(), values.max()))
        return Numbers(mean=mean, std=std, min=low, median=float(np.median(values)), max=high)

"""Means of scores over seeds or folds, and the intervals and p-values of cross-validation.

The training parts of two folds share most of their examples, so the scores of folds are not independent, and the
variance of their mean is larger than s² / n. The corrected resampled t-test estimates it as

    (1 / n + n_validation / n_training) s²      Nadeau and Bengio 2003; n = repetitions times folds, s² over all scores

and compares the mean with Student's t-distribution with n - 1 degrees of freedom. With k folds, n_validation /
n_training is 1 / (k - 1). For repeated cross-validation see Bouckaert and Frank 2004.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np

from tercet.evaluate.bootstrap import Difference, Interval

COVERAGE = 0.95  # of the intervals


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """Mean, minimum and maximum over seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "SeedSpread":
        low, high = min(values), max(values)
        # The mean of equal numbers is exactly that number.
        return cls(mean=low if low == high else statistics.fmean(values), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class FoldSpread(SeedSpread):
    """Mean, minimum and maximum over the folds of cross-validation, with the uncertainty of the mean.

    Attributes:
        std: Standard deviation of the scores of the folds, with n - 1 in the denominator; NaN for a single score, and
            if a score is not finite.
        interval: Approximate 95 % interval of the mean; None if `std` is NaN.
        pooled: Score over the predictions of all folds together, for labels and numbers; None for other scores. With
            several divisions, the mean over them.
    """

    std: float
    interval: Interval | None
    pooled: float | None = None

    @classmethod
    def of_folds(cls, values: Sequence[float], folds: int, *, pooled: float | None = None) -> Self:
        """Return the spread of the scores of all folds, and of all repetitions.

        Args:
            values: Scores.
            folds: Number of folds of the division.
            pooled: Score over the predictions of all folds together.
        """
        spread, n = SeedSpread.of(values), len(values)
        if n < 2 or not all(map(math.isfinite, values)):
            return cls(mean=spread.mean, low=spread.low, high=spread.high, std=math.nan, interval=None, pooled=pooled)
        std = float(np.std(values, ddof=1))
        reach = t_quantile(n - 1) * std * _error_factor(n, folds)
        interval = (spread.mean - reach, spread.mean + reach)
        return cls(mean=spread.mean, low=spread.low, high=spread.high, std=std, interval=interval, pooled=pooled)


def fold_difference(first: Sequence[float], second: Sequence[float], folds: int) -> Difference:
    """Return the difference of the mean scores of two models, paired by fold.

    Args:
        first, second: Scores of both models on the same folds, in the same order; at least two, and all finite.
        folds: Number of folds of the division.
    """
    return _paired_difference(first, second, _error_factor(len(first), folds))


def seed_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the difference of the mean scores of two models, paired by seed, with the paired t-test.

    Args:
        first, second: Scores of both models with the same seeds, in the same order; at least two, and all finite.
    """
    return _paired_difference(first, second, 1 / math.sqrt(len(first)))


def _paired_difference(first: Sequence[float], second: Sequence[float], error_factor: float) -> Difference:
    differences = [one - other for one, other in zip(first, second, strict=True)]
    mean, n = SeedSpread.of(differences).mean, len(differences)
    error = float(np.std(differences, ddof=1)) * error_factor
    reach = t_quantile(n - 1) * error
    t = math.inf if mean else 0.0  # of equal differences
    if error > 0:
        t = abs(mean) / error
    return Difference(
        first=SeedSpread.of(first).mean,
        second=SeedSpread.of(second).mean,
        difference=mean,
        interval=(mean - reach, mean + reach),
        p_value=max(0.0, 1 - t_probability(t, n - 1)),
    )


def _error_factor(n: int, folds: int) -> float:
    """Return the standard error of the mean of n scores, as a multiple of their standard deviation."""
    return math.sqrt(1 / n + 1 / (folds - 1))


@cache
def t_quantile(degrees: int) -> float:
    """Return t such that Student's t is between -t and t with the probability `COVERAGE`."""
    low, high = 0.0, 1000.0
    while low < (middle := (low + high) / 2) < high:
        if t_probability(middle, degrees) < COVERAGE:
            low = middle
        else:
            high = middle
    return high


def t_probability(t: float, degrees: int) -> float:
    """Return the probability that Student's t is between -t and t (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).

    Args:
        t: Bound, at least 0.
        degrees: Degrees of freedom, at least 1.
    """
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2
    term, total = (cosine if is_odd else 1.0), 0.0
    for number in range(1 + is_odd, degrees, 2):
        total += term
        term *= cosine**2 * number / (number + 1)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total

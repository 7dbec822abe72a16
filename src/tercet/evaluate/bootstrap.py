"""Bootstrap over documents: 95 % intervals of scores, and the significance of the difference between two models.

A resample draws as many documents as there are, with replacement (Efron and Tibshirani 1993). It is represented by the
number of times that each document was drawn, so scores are functions of the weights of the documents. For the
difference between two models, both are scored on the same resamples (Koehn 2004). The p-value is the fraction of
resamples in which the difference deviates from its mean by at least the measured difference, as in sacrebleu: the
mean over resamples stands for no difference (Riezler and Maxwell 2005).

The random seed is fixed, so that the same scores have the same intervals.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from tercet.config import UserError
from tercet.notebook import Table

RESAMPLES, MIN_RESAMPLES = 1000, 200
MAX_READ = 500_000_000  # numbers that all resamples of a score may read before there are fewer; about ten seconds
PERCENTILES = (2.5, 97.5)

Interval = tuple[float, float]
Measure = Callable[[Float[np.ndarray, " D"]], Sequence[float] | np.ndarray]


@dataclass(frozen=True, kw_only=True)
class WeightedScores:
    """Scores of a model as functions of the weights of the documents.

    Attributes:
        names: Names of the scores.
        documents: Number of documents, D.
        measure: Function that returns the scores for weights (D,), in the order of `names`; NaN if one is undefined.
        digest: SHA-256 of the scored data, without predictions. Models are only compared if it is equal.
        size: Numbers that one call of `measure` reads.
        biased: Names of scores that resampling increases on average.
    """

    names: tuple[str, ...]
    documents: int
    measure: Measure
    digest: str = ""
    size: int = 1
    biased: frozenset[str] = frozenset()

    def values(self) -> dict[str, float]:
        """Return the scores of all documents, each with weight 1."""
        return dict(zip(self.names, np.asarray(self.measure(np.ones(self.documents))).tolist(), strict=True))

    def intervals(self, *, resamples: int = RESAMPLES) -> dict[str, Interval]:
        """Return the 95 % interval of each score that is defined; empty for 0 resamples."""
        if not resamples:
            return {}
        drawn = resample(self.measure, self.documents, size=self.size, resamples=resamples)
        intervals = dict[str, Interval]()
        for name, value, column in zip(self.names, self.values().values(), drawn.T, strict=True):
            if np.isnan(value):
                continue
            low, high = np.nanpercentile(column, PERCENTILES).tolist()
            # The bias of a resample is about that of the score itself, so the lower limit is that of the basic
            # bootstrap; both kinds of biased scores are at least 0.
            intervals[name] = (max(0.0, min(low, 2 * value - high)) if name in self.biased else low, high)
        return intervals


def join_scores(first: WeightedScores, second: WeightedScores) -> WeightedScores:
    """Return the scores of both over the same documents, with the digest of the first."""
    return WeightedScores(
        names=(*first.names, *second.names),
        documents=first.documents,
        measure=lambda weights: np.concatenate([first.measure(weights), second.measure(weights)]),
        digest=first.digest,
        size=first.size + second.size,
        biased=first.biased | second.biased,
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference of a score between two models on the same documents.

    Attributes:
        first, second: Scores of the models.
        difference: First minus second.
        interval: 95 % interval of the difference.
        p_value: Probability of a difference at least as large between equally good models.
    """

    first: float
    second: float
    difference: float
    interval: Interval
    p_value: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def mean_scores(names: Sequence[str], values: Float[np.ndarray, "D M"], *, digest: str = "") -> WeightedScores:
    """Return scores that are means over documents, from the values of each document."""
    return WeightedScores(
        names=tuple(names),
        documents=len(values),
        measure=lambda weights: weights @ values / weights.sum(),
        digest=digest,
        size=values.size,
    )


def resample(measure: Measure, documents: int, *, size: int = 1, resamples: int = RESAMPLES) -> np.ndarray:
    """Return the scores of each resample, (R, M). R is smaller than `resamples` if scores read many numbers (`size`).

    Raises:
        ValueError: If there are no documents.
    """
    if not documents:
        raise ValueError("nothing to resample; pass at least one document")
    count = min(resamples, max(MIN_RESAMPLES, MAX_READ // max(1, size)))
    rng = np.random.Generator(np.random.PCG64(0))
    draws = (rng.integers(0, documents, documents) for _ in range(count))
    return np.array([measure(np.bincount(draw, minlength=documents).astype(np.float64)) for draw in draws])


def paired_differences(
    first: WeightedScores, second: WeightedScores, *, resamples: int = RESAMPLES
) -> dict[str, Difference]:
    """Return the difference of each score that both models have, with its interval and p-value.

    Raises:
        UserError: If the models were scored on different documents, or have no score in common.
    """
    if (first.documents, first.digest) != (second.documents, second.digest):
        raise UserError(
            f"cannot compare the models: they were scored on different data ({first.documents:,} and "
            f"{second.documents:,} documents); pass the same --data for both"
        )
    names = [name for name in first.names if name in second.names]
    if not names:
        raise UserError(
            f"cannot compare the models: one has {', '.join(first.names)}, the other {', '.join(second.names)}; "
            "compare models of the same task"
        )
    places = [[scores.names.index(name) for name in names] for scores in (first, second)]

    def measure(weights: np.ndarray) -> np.ndarray:
        one, other = (
            np.asarray(scores.measure(weights))[place] for scores, place in zip((first, second), places, strict=True)
        )
        return np.stack((one, other, one - other))

    drawn = resample(measure, first.documents, size=first.size + second.size, resamples=resamples)[:, 2]  # (R, M)
    values = measure(np.ones(first.documents))
    differences = dict[str, Difference]()
    for name, (one, other, difference), column in zip(names, values.T.tolist(), drawn.T, strict=True):
        if np.isnan(difference):
            continue
        low, high = np.nanpercentile(column, PERCENTILES).tolist()
        is_larger = np.abs(column - np.nanmean(column)) >= abs(difference)
        p_value = float((is_larger.sum() + 1) / (len(column) + 1))
        differences[name] = Difference(
            first=one, second=other, difference=difference, interval=(low, high), p_value=p_value
        )
    return differences


def format_interval(interval: Interval | None, style: str = ".3f") -> str:
    """Return the interval as text; empty for None."""
    return "" if interval is None else f"{interval[0]:{style}} to {interval[1]:{style}}"


def difference_table(differences: dict[str, Difference], *, other: str) -> Table:
    """Return a table of the differences, with `other` as the name of the second model."""
    rows = [
        (
            name.replace("_", " "),
            f"{row.first:.4g}",
            f"{row.second:.4g}",
            f"{row.difference:+.4g}",
            format_interval(row.interval, "+.4g"),
            f"{row.p_value:.3f}",
        )
        for name, row in differences.items()
    ]
    return Table(header=("", "model", other, "difference", "95 % interval", "p"), rows=rows)

"""Scores of the order in which a model ranks texts by the probability of a label: AUROC and average precision.

    AUROC = P(a text with the label has a higher probability than one without it), equal ones count half
    AP    = sum over thresholds of (R_n - R_n-1) P_n                                   as in scikit-learn

P_n and R_n are precision and recall of the texts with at least the n-th highest probability. Each label is scored
against all others (one-vs-rest); macro scores are means over the labels that occur and are not those of all texts.
"""

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

BLOCK = 1 << 20  # probabilities that are read at once


class RankedLabels:
    """Ranking of items by the probability of each label.

    Args:
        probabilities: Probability of each label.
        is_true: True if the item has the label.
    """

    def __init__(self, probabilities: Float[np.ndarray, "N L"], is_true: Bool[np.ndarray, "N L"]) -> None:
        self._probabilities, self._is_true = probabilities, is_true

    @cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Items sorted by probability, whether they have the label, and the start and end of their ties: (L, N)."""
        order = np.argsort(self._probabilities.T, axis=1, kind="stable")
        ordered = np.take_along_axis(self._probabilities.T, order, 1)
        starts, ends = np.empty_like(order), np.empty_like(order)
        for label, row in enumerate(ordered):
            starts[label], ends[label] = np.searchsorted(row, row, "left"), np.searchsorted(row, row, "right")
        return order, np.take_along_axis(self._is_true.T, order, 1), starts, ends

    def scores(self, weights: Float[np.ndarray, " N"]) -> tuple[Float[np.ndarray, " L"], Float[np.ndarray, " L"]]:
        """Return AUROC and average precision of each label; NaN if all weighted items have it, or none."""
        order, is_true, starts, ends = self._order
        step = max(1, BLOCK // max(1, len(weights)))
        parts = [
            _score_block(weights[order[block]], is_true[block], starts[block], ends[block])
            for block in (slice(first, first + step) for first in range(0, len(order), step))
        ]
        auroc, precision = (np.concatenate(part) for part in zip(*parts, strict=True))
        return auroc, precision


def _score_block(
    weights: Float[np.ndarray, "L N"], is_true: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    positive = weights * is_true
    total, n_positive = weights.sum(1), positive.sum(1)
    is_defined = (n_positive > 0) & (n_positive < total)
    sums, positive_sums = (np.pad(np.cumsum(part, axis=1), ((0, 0), (1, 0))) for part in (weights, positive))
    below, below_positive = (np.take_along_axis(part, starts, 1) for part in (sums, positive_sums))
    up_to, up_to_positive = (np.take_along_axis(part, ends, 1) for part in (sums, positive_sums))
    lower_negatives = (below - below_positive + up_to - up_to_positive) / 2  # ties count half
    with np.errstate(divide="ignore", invalid="ignore"):
        auroc = (positive * lower_negatives).sum(1) / (n_positive * (total - n_positive))
        precision = (n_positive[:, None] - below_positive) / (total[:, None] - below)
        average_precision = np.where(positive > 0, positive * precision, 0).sum(1) / n_positive
    return np.where(is_defined, auroc, np.nan), np.where(is_defined, average_precision, np.nan)


def mean_defined(values: Float[np.ndarray, " L"]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")

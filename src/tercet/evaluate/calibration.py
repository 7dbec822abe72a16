"""Calibration of probabilities: how far the confidence of predictions differs from their accuracy.

    ECE = sum over bins of (items in the bin / all items) |accuracy - mean confidence|         Guo et al. 2017

There are 15 bins of equal width. The confidence is the probability of the predicted label; with several labels per
text, it is the probability of each label, and the accuracy is the fraction of texts with it. The ECE of a perfectly
calibrated model is above 0 on a finite number of items, the more so the fewer there are.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

N_BINS = 15


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """A bin of predictions with similar confidence.

    Attributes:
        low, high: Limits of the confidence; the upper one is included.
        confidence: Mean confidence; None for an empty bin.
        accuracy: Fraction of correct predictions; None for an empty bin.
        count: Number of predictions.
    """

    low: float
    high: float
    confidence: float | None
    accuracy: float | None
    count: int


class Calibration:
    """Predictions in bins of confidence.

    Args:
        confidence: Confidence of each prediction, 0 to 1.
        is_correct: 1 for correct predictions, else 0.
    """

    def __init__(self, confidence: Float[np.ndarray, " N"], is_correct: np.ndarray) -> None:
        self._confidence, self._is_correct = confidence.astype(np.float64), is_correct.astype(np.float64)
        edges = np.linspace(0, 1, N_BINS + 1)
        self._bin = np.searchsorted(edges[1:-1], self._confidence, "left")  # the upper limit is included

    def ece(self, weights: Float[np.ndarray, " N"]) -> float:
        """Return the expected calibration error of weighted predictions."""
        gaps = np.bincount(self._bin, weights * (self._is_correct - self._confidence), N_BINS)
        return float(np.abs(gaps).sum() / weights.sum())

    def bins(self) -> tuple[CalibrationBin, ...]:
        """Return the bins in ascending order of confidence."""
        counts = np.bincount(self._bin, minlength=N_BINS)
        sums = (np.bincount(self._bin, values, N_BINS) for values in (self._confidence, self._is_correct))
        means = [total / np.maximum(counts, 1) for total in sums]
        return tuple(
            CalibrationBin(
                low=number / N_BINS,
                high=(number + 1) / N_BINS,
                confidence=float(means[0][number]) if count else None,
                accuracy=float(means[1][number]) if count else None,
                count=count,
            )
            for number, count in enumerate(counts.tolist())
        )

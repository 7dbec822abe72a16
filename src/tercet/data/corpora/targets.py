"""The labels of tokenised texts on disk: written a few at a time, memory-mapped, and as a batch's targets.

One label       (N,) int64 places among the names; over tokens (M,), IGNORE_INDEX on all but a word's first piece
several labels  (K,) int64 places, those of all texts one after another, and (N + 1,) where each text's start: as many
                numbers as there are labels in the texts, however many names there are
a number        (N,) float64
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tercet.spec import ProblemType

IGNORE_INDEX = -100  # no label: the objectives' own number


@dataclass(frozen=True, kw_only=True)
class TargetScale:
    """The mean and the standard deviation (of all, not of a sample) of the training part's numbers."""

    mean: float = 0.0
    std: float = 1.0


def label_dtype(problem_type: ProblemType) -> np.dtype[Any]:
    return np.dtype(np.float64 if problem_type == "regression" else np.int64)


def label_indicators(labels: np.ndarray, starts: np.ndarray, numbers: np.ndarray, n_labels: int) -> np.ndarray:
    """(B, L) float32: 1 where the text `numbers[b]` has the label, 0 where not."""
    indicators = np.zeros((len(numbers), n_labels), dtype=np.float32)
    for row, number in enumerate(numbers.tolist()):
        indicators[row, labels[starts[number] : starts[number + 1]]] = 1
    return indicators

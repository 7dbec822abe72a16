"""Labels of tokenized texts: their types on disk, and the targets of a batch.

one label       (N,) int64 indices of label names; over tokens (M,), IGNORE_INDEX except at a word's first token
several labels  (K,) int64 indices, those of all texts concatenated, and (N + 1,) the start of each text's labels;
                the size depends on the labels of the texts, not on the number of label names
a number        (N,) float64

N texts, M tokens, K labels of all texts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tercet.spec import ProblemType

IGNORE_INDEX = -100  # no label; the same value as in `tercet.objectives`


@dataclass(frozen=True, kw_only=True)
class TargetScale:
    """Mean and standard deviation (of the population, not of a sample) of the training part's numbers."""

    mean: float = 0.0
    std: float = 1.0


def label_dtype(problem_type: ProblemType) -> np.dtype[Any]:
    return np.dtype(np.float64 if problem_type == "regression" else np.int64)


def label_indicators(labels: np.ndarray, starts: np.ndarray, numbers: np.ndarray, n_labels: int) -> np.ndarray:
    """Return the labels of the texts `numbers` (B,) as indicators, (B, L) float32: 1 if a text has the label, else 0.

    Args:
        labels: (K,) label indices of all texts, concatenated.
        starts: (N + 1,) position of the first label of each text, and of the end.
        numbers: (B,) numbers of the texts.
        n_labels: Number of label names, L.
    """
    indicators = np.zeros((len(numbers), n_labels), dtype=np.float32)
    for row, number in enumerate(numbers.tolist()):
        indicators[row, labels[starts[number] : starts[number + 1]]] = 1
    return indicators

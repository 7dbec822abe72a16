"""Precision, recall and F1 of each label, for one or several labels per text, and a table of them."""

import numpy as np

from tercet.notebook import Table

PerLabel = dict[str, dict[str, float]]


def per_label_scores(
    labels: tuple[str, ...], *, correct: np.ndarray, support: np.ndarray, n_predicted: np.ndarray, f1: np.ndarray
) -> PerLabel:
    """Return precision, recall, F1 and count of each label.

    Args:
        labels: Names of the labels.
        correct, support, n_predicted: (L,) how often each label was correctly predicted, true, and predicted.
        f1: (L,) F1 of each label.
    """
    precision, recall = correct / np.maximum(n_predicted, 1), correct / np.maximum(support, 1)
    return {
        label: {
            "precision": float(precision[place]),
            "recall": float(recall[place]),
            "f1": float(f1[place]),
            "count": int(support[place]),
        }
        for place, label in enumerate(labels)
    }


def per_label_table(per_label: PerLabel) -> Table:
    """Return a table with one row per label, the most frequent first."""
    rows = [
        (label, f"{row['precision']:.1%}", f"{row['recall']:.1%}", f"{row['f1']:.1%}", f"{row['count']:,}")
        for label, row in sorted(per_label.items(), key=lambda item: -item[1]["count"])
    ]
    return Table(header=("", "precision", "recall", "F1", "count"), rows=rows)

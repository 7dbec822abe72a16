"""Scores of each label, for one or several labels per text, and a table of them."""

import numpy as np

from tercet.notebook import Table

PerLabel = dict[str, dict[str, float]]
RANKED = {"auroc": "AUROC", "average_precision": "average precision"}


def per_label_scores(
    labels: tuple[str, ...],
    *,
    correct: np.ndarray,
    support: np.ndarray,
    n_predicted: np.ndarray,
    f1: np.ndarray,
    ranked: tuple[np.ndarray, np.ndarray] | None = None,
) -> PerLabel:
    """Return precision, recall, F1 and count of each label, and AUROC and average precision if they are defined.

    Args:
        labels: Names of the labels.
        correct, support, n_predicted: (L,) how often each label was correctly predicted, true, and predicted.
        f1: (L,) F1 of each label.
        ranked: (L,) AUROC and average precision of each label; NaN if they are not defined.
    """
    auroc, average_precision = ranked or (np.full(len(labels), np.nan), np.full(len(labels), np.nan))
    precision, recall = correct / np.maximum(n_predicted, 1), correct / np.maximum(support, 1)
    return {
        label: {
            "precision": float(precision[place]),
            "recall": float(recall[place]),
            "f1": float(f1[place]),
            "count": int(support[place]),
            **(
                {}
                if np.isnan(auroc[place])
                else {"auroc": float(auroc[place]), "average_precision": float(average_precision[place])}
            ),
        }
        for place, label in enumerate(labels)
    }


def per_label_table(per_label: PerLabel) -> Table:
    """Return a table with one row per label, the most frequent first."""
    columns = [name for name in RANKED if any(name in row for row in per_label.values())]
    rows = [
        (
            label,
            *(f"{row[name]:.1%}" for name in ("precision", "recall", "f1")),
            *(f"{row[name]:.3f}" if name in row else "" for name in columns),
            f"{row['count']:,}",
        )
        for label, row in sorted(per_label.items(), key=lambda item: -item[1]["count"])
    ]
    return Table(header=("", "precision", "recall", "F1", *(RANKED[name] for name in columns), "count"), rows=rows)

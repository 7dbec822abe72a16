"""Pooled predictions of several models for different texts, such as those of the folds of cross-validation.

Each text is predicted by the model that was not trained on it. Scores that are not means over texts, such as macro F1
and the correlations, are less noisy over all predictions than over the few texts of one fold (Forman and Scholz 2010).
"""

from collections.abc import Sequence

import numpy as np

from tercet.evaluate.labels import LabelPredictions, LabelScores
from tercet.evaluate.multi_label import MultiLabelPredictions, MultiLabelScores
from tercet.evaluate.regression import NumberPredictions, RegressionScores

Predictions = LabelPredictions | MultiLabelPredictions | NumberPredictions
MEASURES_OF_SCORES: dict[type, tuple[str, ...]] = {  # the scores of each kind of labels in a comparison
    LabelScores: ("accuracy", "f1"),
    MultiLabelScores: ("f1", "micro_f1", "exact_match"),
    RegressionScores: ("rmse", "mae", "r2", "pearson", "spearman"),
}


def name_scores(scores: LabelScores | MultiLabelScores | RegressionScores) -> dict[str, float]:
    """Return the scores that a comparison of models shows."""
    return {name: getattr(scores, name) for name in MEASURES_OF_SCORES[type(scores)]}


def pool_scores(parts: Sequence[Predictions | None]) -> dict[str, float]:
    """Return the scores of all predictions together.

    Args:
        parts: Predictions of each model, for texts that no other model has.

    Returns:
        The scores that a comparison shows; empty if a part is None, or the models have different labels.
    """
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({(type(part), getattr(part, "labels", ())) for part in known}) != 1:
        return {}
    predicted, targets = (np.concatenate([getattr(part, name) for part in known]) for name in ("predicted", "targets"))
    match known[0]:
        case NumberPredictions():
            pooled = NumberPredictions(predicted, targets)
        case LabelPredictions() as part:
            pooled = LabelPredictions(predicted, targets, part.labels)
        case MultiLabelPredictions() as part:
            pooled = MultiLabelPredictions(predicted, targets, part.labels)
    return name_scores(pooled.scores(resamples=0))

"""How near the numbers of a regression are to the true ones, beside what always answering their mean reaches.

    RMSE = sqrt(mean (p - y)²)    MAE = mean |p - y|    R² = 1 - RMSE² / var(y)
    Pearson = cov(p, y) / (std(p) std(y))    Spearman = Pearson of the ranks, where equal numbers share their mean

In the labels' own unit, and worked out in float64. Where one side is constant there is no correlation: it is 0, and so
is R² of constant true numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from tercet.config import UserError
from tercet.data import LabeledExamples
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.evaluate.label_logits import check_head, read_logits
from tercet.evaluate.score_summary import ScoreSummary
from tercet.models import EncoderOnly
from tercet.notebook import Table, View
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True, repr=False)
class RegressionScores(ScoreSummary):
    """Attributes:
    rmse, mae: root mean square error and mean absolute error, in the labels' unit.
    r2: the share of the true numbers' variance that is explained; below 0 where their mean is nearer.
    pearson, spearman: the correlation of predicted and true numbers, and of their ranks.
    constant_rmse, constant_mae: of always answering the mean of the true numbers.
    count: texts.
    truncated: texts of which the model did not see the end.
    """

    rmse: float
    mae: float
    r2: float
    pearson: float
    spearman: float
    constant_rmse: float
    constant_mae: float
    count: int
    truncated: int = 0

    def view(self) -> View:
        """Return the errors with those of the mean, and the correlations."""
        rows = [
            ("RMSE", f"{self.rmse:.5g}", f"{self.constant_rmse:.5g}"),
            ("MAE", f"{self.mae:.5g}", f"{self.constant_mae:.5g}"),
            ("R²", f"{self.r2:.3f}", "0.000"),
            ("Pearson", f"{self.pearson:.3f}", ""),
            ("Spearman", f"{self.spearman:.3f}", ""),
        ]
        facts = [f"{self.count:,} numbers", *([f"{self.truncated:,} texts cut"] if self.truncated else [])]
        return View((Table(header=("", "model", "the mean"), rows=rows), "", "; ".join(facts)))


def regression_scores(
    predicted: Sequence[float] | np.ndarray, true_numbers: Sequence[float] | np.ndarray
) -> RegressionScores:
    """The scores of predicted numbers (N,) against the true ones (N,).

    Raises:
        ValueError: where they are not as many, or are none.
    """
    predictions, targets = np.asarray(predicted, dtype=np.float64), np.asarray(true_numbers, dtype=np.float64)
    if predictions.shape != targets.shape or predictions.ndim != 1:
        raise ValueError(f"{predictions.shape} predictions for {targets.shape} numbers; give one for each")
    if not len(targets):
        raise ValueError("there is nothing to score; give at least one prediction")
    errors, distances = predictions - targets, targets - targets.mean()
    variance = float((distances**2).mean())
    mean_square = float((errors**2).mean())
    return RegressionScores(
        rmse=math.sqrt(mean_square),
        mae=float(np.abs(errors).mean()),
        r2=1 - mean_square / variance if variance else 0.0,
        pearson=correlation(predictions, targets),
        spearman=correlation(average_ranks(predictions), average_ranks(targets)),
        constant_rmse=math.sqrt(variance),
        constant_mae=float(np.abs(distances).mean()),
        count=len(targets),
    )


def score_regression(
    model: EncoderOnly, tokenizer: Tokenizer, labelled: LabeledExamples, *, batch_tokens: int = BATCH_TOKENS
) -> RegressionScores:
    """The scores of a regression on `labelled`.

    Args:
        batch_tokens: tokens read at once, padding included; a longer text stands alone.

    Raises:
        ValueError: where the model has no classifier, or either is of another kind.
        UserError: where the model's outputs are not numbers.
    """
    head = check_head(model, labelled, "regression")
    answers = list(read_logits(model, tokenizer, labelled, batch_tokens))
    if not answers:
        raise UserError("there is no text to score; give some")
    scores = np.concatenate([logits[:, 0] for logits, _ in answers]).astype(np.float64)
    targets = np.concatenate([targets for _, targets in answers])
    truncated = int((labelled.lengths + 2 > model.max_len).sum())
    return replace(regression_scores(head.target_mean + head.target_std * scores, targets), truncated=truncated)


def average_ranks(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """From 1 on, the smallest first; equal values share the mean of the ranks that they take."""
    sorted_values = np.sort(values)
    n_below, n_up_to = np.searchsorted(sorted_values, values, "left"), np.searchsorted(sorted_values, values, "right")
    return (n_below + 1 + n_up_to) / 2


def correlation(a: Float[np.ndarray, " N"], b: Float[np.ndarray, " N"]) -> float:
    """Pearson's; 0 where either is constant."""
    if (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    a, b = (x / np.abs(x).max() for x in (a - a.mean(), b - b.mean()))  # squares of large numbers stay finite
    return float(np.clip((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()), -1, 1))

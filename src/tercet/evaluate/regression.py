"""Scores of a regression, compared with always predicting the mean.

    RMSE = sqrt(mean (p - y)²)    MAE = mean |p - y|    R² = 1 - RMSE² / var(y)
    Pearson = cov(p, y) / (std(p) std(y))    Spearman = Pearson of the ranks; equal numbers have their mean rank

p are predicted and y true values. Errors are in the unit of the labels. All scores are computed in float64. Undefined
scores are reported as 0: correlations if p or y is constant, and R² if y is constant.
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
from tercet.messages import counted
from tercet.models import EncoderOnly
from tercet.notebook import Table, View
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True, repr=False)
class RegressionScores(ScoreSummary):
    """Scores of a regression.

    Attributes:
        rmse, mae: Root mean square error and mean absolute error, in the unit of the labels.
        r2: Fraction of the variance of the true values that is explained; negative if their mean is a better
            prediction.
        pearson, spearman: Correlation of predicted and true values, and of their ranks.
        constant_rmse, constant_mae: Errors of always predicting the mean of the true values.
        count: Number of texts.
        truncated: Number of texts whose end the model did not see.
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
        """Return the errors next to those of the mean, and the correlations."""
        rows = [
            ("RMSE", f"{self.rmse:.5g}", f"{self.constant_rmse:.5g}"),
            ("MAE", f"{self.mae:.5g}", f"{self.constant_mae:.5g}"),
            ("R²", f"{self.r2:.3f}", "0.000"),
            ("Pearson", f"{self.pearson:.3f}", ""),
            ("Spearman", f"{self.spearman:.3f}", ""),
        ]
        facts = [
            counted(self.count, "number", "numbers"),
            *([f"{counted(self.truncated, 'text', 'texts')} cut"] if self.truncated else []),
        ]
        return View((Table(header=("", "model", "the mean"), rows=rows), "", "; ".join(facts)))


def regression_scores(
    predicted: Sequence[float] | np.ndarray, true_numbers: Sequence[float] | np.ndarray
) -> RegressionScores:
    """Return the scores of predicted numbers (N,) for the true ones (N,).

    Raises:
        ValueError: If the shapes differ, or there are no predictions.
    """
    predictions, targets = np.asarray(predicted, dtype=np.float64), np.asarray(true_numbers, dtype=np.float64)
    if predictions.shape != targets.shape or predictions.ndim != 1:
        raise ValueError(f"expected one prediction per number, got shapes {predictions.shape} and {targets.shape}")
    if not len(targets):
        raise ValueError("nothing to score; pass at least one prediction")
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
    model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, *, batch_tokens: int = BATCH_TOKENS
) -> RegressionScores:
    """Return the scores of a regression on labeled examples.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        labeled: Labeled examples.
        batch_tokens: Maximum number of tokens per batch, including padding; a longer text is a separate batch.

    Raises:
        ValueError: If the model has no classifier for numbers, or the labels are not numbers.
        UserError: If there are no texts, the tokenizer has no bos or eos, or an output of the model is not finite.
    """
    predicted, true_numbers = predict_numbers(model, tokenizer, labeled, batch_tokens=batch_tokens)
    truncated = int((labeled.row_lengths > model.max_len).sum())
    return replace(regression_scores(predicted, true_numbers), truncated=truncated)


def predict_numbers(
    model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, *, batch_tokens: int = BATCH_TOKENS
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the predicted and the true numbers of the examples, in their order.

    Arguments and errors as in `score_regression`.
    """
    head = check_head(model, labeled, "regression")
    answers = list(read_logits(model, tokenizer, labeled, batch_tokens))
    if not answers:
        raise UserError("no texts to score; pass at least one")
    order = np.argsort(np.concatenate([numbers for numbers, *_ in answers]))
    scores = np.concatenate([logits[:, 0] for _, logits, _ in answers]).astype(np.float64)
    true_numbers = np.concatenate([targets for *_, targets in answers])
    return (head.target_mean + head.target_std * scores)[order], true_numbers[order]


def average_ranks(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Return the ranks, from 1 for the smallest value; equal values have the mean of their ranks."""
    sorted_values = np.sort(values)
    n_below, n_up_to = np.searchsorted(sorted_values, values, "left"), np.searchsorted(sorted_values, values, "right")
    return (n_below + 1 + n_up_to) / 2


def correlation(a: Float[np.ndarray, " N"], b: Float[np.ndarray, " N"]) -> float:
    """Return Pearson's correlation; 0 if either side is constant."""
    if (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    a, b = (x / np.abs(x).max() for x in (a - a.mean(), b - b.mean()))  # squares of large numbers stay finite
    return float(np.clip((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()), -1, 1))

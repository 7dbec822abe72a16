"""Scores of a regression, compared with always predicting the mean.

    RMSE = sqrt(mean (p - y)²)    MAE = mean |p - y|    R² = 1 - RMSE² / var(y)
    Pearson = cov(p, y) / (std(p) std(y))    Spearman = Pearson of the ranks; equal numbers have their mean rank

p are predicted and y true values. Errors are in the unit of the labels. All scores are computed in float64. Undefined
scores are reported as 0: correlations if p or y is constant, and R² if y is constant. The 95 % intervals are those of
the bootstrap over texts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from tercet.config import UserError
from tercet.data import LabeledExamples
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.evaluate.bootstrap import RESAMPLES, Interval, WeightedScores, format_interval
from tercet.evaluate.digest import digest
from tercet.evaluate.label_logits import check_head, read_logits
from tercet.evaluate.score_summary import PredictionScores
from tercet.messages import counted
from tercet.models import EncoderOnly
from tercet.notebook import Table, View
from tercet.tokens import Tokenizer

WEIGHTED = ("rmse", "mae", "r2", "pearson", "spearman")


@dataclass(frozen=True, kw_only=True, repr=False)
class RegressionScores(PredictionScores):
    """Scores of a regression.

    Attributes:
        rmse, mae: Root mean square error and mean absolute error, in the unit of the labels.
        r2: Fraction of the variance of the true values that is explained; negative if their mean is a better
            prediction.
        pearson, spearman: Correlation of predicted and true values, and of their ranks.
        intervals: 95 % interval of each of these scores; empty if they were not computed.
        constant_rmse, constant_mae: Errors of always predicting the mean of the true values.
        count: Number of texts.
        truncated: Number of texts whose end the model did not see.
    """

    rmse: float
    mae: float
    r2: float
    pearson: float
    spearman: float
    intervals: dict[str, Interval]
    constant_rmse: float
    constant_mae: float
    count: int
    truncated: int = 0

    def view(self) -> View:
        """Return the errors next to those of the mean, and the correlations."""
        numbers = (
            ("RMSE", "rmse", ".5g", f"{self.constant_rmse:.5g}"),
            ("MAE", "mae", ".5g", f"{self.constant_mae:.5g}"),
            ("R²", "r2", ".3f", "0.000"),
            ("Pearson", "pearson", ".3f", ""),
            ("Spearman", "spearman", ".3f", ""),
        )
        rows = [
            (title, f"{getattr(self, name):{style}}", format_interval(self.intervals.get(name), style), constant)
            for title, name, style, constant in numbers
        ]
        facts = [
            counted(self.count, "number", "numbers"),
            *([f"{counted(self.truncated, 'text', 'texts')} cut"] if self.truncated else []),
        ]
        table = Table(header=("", "model", "95 % interval", "the mean"), rows=rows)
        return View((table, *self.metrics_table(), "", "; ".join(facts)))


class NumberPredictions:
    """Predictions of a regression.

    Args:
        predicted, targets: Predicted and true numbers.
        truncated: Number of texts whose end the model did not see.

    Raises:
        ValueError: If the shapes differ, or there are no predictions.
    """

    def __init__(
        self, predicted: Float[np.ndarray, " N"], targets: Float[np.ndarray, " N"], *, truncated: int = 0
    ) -> None:
        if predicted.shape != targets.shape or predicted.ndim != 1:
            raise ValueError(f"expected one prediction per number, got shapes {predicted.shape} and {targets.shape}")
        if not len(targets):
            raise ValueError("nothing to score; pass at least one prediction")
        self.predicted, self.targets, self.truncated = predicted, targets, truncated
        self._errors = predicted - targets

    @cached_property
    def weighted(self) -> WeightedScores:
        """Scores as functions of the weights of the texts."""
        return WeightedScores(
            names=WEIGHTED,
            documents=len(self.targets),
            measure=self._measure,
            digest=digest(*map(repr, self.targets.tolist())),
            size=len(self.targets) * len(WEIGHTED),
        )

    def scores(self, *, resamples: int = RESAMPLES) -> RegressionScores:
        """Return the scores, with intervals unless `resamples` is 0."""
        distances = self.targets - self.targets.mean()
        return RegressionScores(
            **self.weighted.values(),
            intervals=self.weighted.intervals(resamples=resamples),
            constant_rmse=math.sqrt(float((distances**2).mean())),
            constant_mae=float(np.abs(distances).mean()),
            count=len(self.targets),
            truncated=self.truncated,
            metrics={},
        )

    def _measure(self, weights: Float[np.ndarray, " N"]) -> list[float]:
        total = weights.sum()
        distances = self.targets - weights @ self.targets / total
        mean_square, variance = (float(weights @ part**2 / total) for part in (self._errors, distances))
        drawn = self.targets[weights > 0]
        predicted_ranks, true_ranks = (average_ranks(values, weights) for values in (self.predicted, self.targets))
        return [
            math.sqrt(mean_square),
            float(weights @ np.abs(self._errors) / total),
            0.0 if variance == 0 or (drawn == drawn[0]).all() else 1 - mean_square / variance,
            correlation(self.predicted, self.targets, weights),
            correlation(predicted_ranks, true_ranks, weights),
        ]


def regression_scores(
    predicted: Sequence[float] | np.ndarray, true_numbers: Sequence[float] | np.ndarray, *, resamples: int = RESAMPLES
) -> RegressionScores:
    """Return the scores of predicted numbers (N,) for the true ones (N,).

    Args:
        predicted: Predicted numbers.
        true_numbers: True numbers.
        resamples: Number of resamples of the intervals; 0 for no intervals.

    Raises:
        ValueError: If the shapes differ, or there are no predictions.
    """
    predictions, targets = np.asarray(predicted, dtype=np.float64), np.asarray(true_numbers, dtype=np.float64)
    return NumberPredictions(predictions, targets).scores(resamples=resamples)


def predict_numbers(
    model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, *, batch_tokens: int = BATCH_TOKENS
) -> NumberPredictions:
    """Return the predictions for the examples, in their order and in the unit of the labels.

    Arguments and errors are those of `score_regression`.
    """
    head = check_head(model, labeled, "regression")
    if not len(labeled):
        raise UserError("no texts to score; pass at least one")
    scores, targets = np.zeros((2, len(labeled)))
    for numbers, logits, batch_targets in read_logits(model, tokenizer, labeled, batch_tokens):
        scores[numbers], targets[numbers] = logits[:, 0], batch_targets
    truncated = int((labeled.row_lengths > model.max_len).sum())
    return NumberPredictions(head.target_mean + head.target_std * scores, targets, truncated=truncated)


def score_regression(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    labeled: LabeledExamples,
    *,
    batch_tokens: int = BATCH_TOKENS,
    resamples: int = RESAMPLES,
) -> RegressionScores:
    """Return the scores of a regression on labeled examples.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        labeled: Labeled examples.
        batch_tokens: Maximum number of tokens per batch, including padding; a longer text is a separate batch.
        resamples: Number of resamples of the intervals; 0 for no intervals.

    Raises:
        ValueError: If the model has no classifier for numbers, or the labels are not numbers.
        UserError: If there are no texts, the tokenizer has no bos or eos, or an output of the model is not finite.
    """
    return predict_numbers(model, tokenizer, labeled, batch_tokens=batch_tokens).scores(resamples=resamples)


def average_ranks(
    values: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"] | None = None
) -> Float[np.ndarray, " N"]:
    """Return the ranks, from 1 for the smallest value; equal values have the mean of their ranks.

    Args:
        values: The values.
        weights: Number of times that each value occurs; by default once.
    """
    order = np.argsort(values, kind="stable")
    sorted_values = values[order]
    sums = np.cumsum([0.0, *(np.ones(len(values)) if weights is None else weights[order])])
    below, up_to = (sums[np.searchsorted(sorted_values, values, side)] for side in ("left", "right"))
    return (below + 1 + up_to) / 2


def correlation(
    a: Float[np.ndarray, " N"], b: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"] | None = None
) -> float:
    """Return Pearson's correlation; 0 if either side is constant.

    Args:
        a, b: The two sides.
        weights: Number of times that each pair occurs; by default once.
    """
    if weights is not None:
        drawn = weights > 0
        a, b, weights = a[drawn], b[drawn], weights[drawn]
    if (a == a[0]).all() or (b == b[0]).all():
        return 0.0
    counts = np.ones(len(a)) if weights is None else weights
    a, b = (x - counts @ x / counts.sum() for x in (a, b))
    a, b = (x / np.abs(x).max() for x in (a, b))  # squares of large numbers stay finite
    variances = (counts @ a**2) * (counts @ b**2)
    return float(np.clip(counts @ (a * b) / math.sqrt(variances), -1, 1))

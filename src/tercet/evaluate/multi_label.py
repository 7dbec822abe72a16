"""Scores of a classifier with several labels per text, compared with a constant prediction.

    F1 = 2 correct / (predicted + true)    micro: from the counts of all labels; macro: mean of the F1 of each label

As for single labels, macro F1 excludes labels that neither occur nor were predicted. Exact match is the fraction of
texts with exactly their labels, which scikit-learn calls (subset) accuracy. The constant prediction is the set of
labels that more than half of the texts have, so it uses only label frequencies. AUROC and average precision are in
`ranked_labels`, the calibration error is in `calibration`. The 95 % intervals are those of the bootstrap over texts.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from tercet.config import UserError
from tercet.data import LabeledExamples
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.evaluate.bootstrap import RESAMPLES, Interval, WeightedScores, format_interval
from tercet.evaluate.calibration import N_BINS, Calibration, CalibrationBin
from tercet.evaluate.digest import digest
from tercet.evaluate.label_logits import check_head, find_places, read_logits
from tercet.evaluate.per_label import per_label_scores, per_label_table
from tercet.evaluate.ranked_labels import RankedLabels, mean_defined
from tercet.evaluate.score_summary import PredictionScores
from tercet.messages import counted
from tercet.models import EncoderOnly
from tercet.notebook import Table, View
from tercet.objectives import THRESHOLD
from tercet.tokens import Tokenizer

COUNTED, RANKED = ("f1", "micro_f1", "exact_match"), ("auroc", "average_precision", "ece")


@dataclass(frozen=True, kw_only=True, repr=False)
class MultiLabelScores(PredictionScores):
    """Scores of a classifier with several labels per text.

    Attributes:
        f1: Macro F1: mean of the F1 of each label that occurs or was predicted.
        micro_f1: F1 of all labels together.
        exact_match: Fraction of texts with exactly their labels.
        auroc: Area under the ROC curve, macro mean over the labels. None without probabilities, or if no label occurs
            in some texts and not in others; the following scores likewise.
        average_precision: Area under the curve of precision and recall, macro mean over the labels.
        ece: Expected calibration error of the probabilities of all labels.
        intervals: 95 % interval of each of these scores; empty if they were not computed.
        constant_f1, constant_micro_f1, constant_exact_match: Scores of the constant prediction.
        count: Number of texts.
        labels: Labels in the order of the model.
        per_label: For each label, a dictionary with its "precision", "recall", "f1" and "count", and with its "auroc"
            and "average_precision" if they are defined.
        calibration: Bins of `ece`; empty without probabilities.
        threshold: Probability above which a label is predicted.
        truncated: Number of texts whose end the model did not see.
    """

    f1: float
    micro_f1: float
    exact_match: float
    auroc: float | None
    average_precision: float | None
    ece: float | None
    intervals: dict[str, Interval]
    constant_f1: float
    constant_micro_f1: float
    constant_exact_match: float
    count: int
    labels: tuple[str, ...]
    per_label: dict[str, dict[str, float]]
    calibration: tuple[CalibrationBin, ...]
    threshold: float = THRESHOLD
    truncated: int = 0

    def view(self) -> View:
        """Return the scores of each label, then those of all labels next to the constant prediction."""
        numbers = (
            ("micro F1", "micro_f1", ".1%", f"{self.constant_micro_f1:.1%}"),
            ("macro F1", "f1", ".1%", f"{self.constant_f1:.1%}"),
            ("exact match", "exact_match", ".1%", f"{self.constant_exact_match:.1%}"),
            ("AUROC (macro)", "auroc", ".3f", "0.500"),
            ("average precision (macro)", "average_precision", ".3f", ""),
            (f"calibration error (ECE, {N_BINS} bins)", "ece", ".1%", ""),
        )
        rows = [
            (title, f"{value:{style}}", format_interval(self.intervals.get(name), style), constant)
            for title, name, style, constant in numbers
            if (value := getattr(self, name)) is not None
        ]
        table = Table(header=("", "model", "95 % interval", "constant prediction"), rows=rows)
        facts = [counted(self.count, "text", "texts"), *([f"{self.truncated:,} cut"] if self.truncated else [])]
        return View((per_label_table(self.per_label), "", table, *self.metrics_table(), "", "; ".join(facts)))


class _Counts:
    """Weighted counts of texts.

    Attributes:
        correct, support, n_predicted: (L,) number of texts for which each label is predicted correctly, is true, and is
            predicted.
    """

    def __init__(self, correct: np.ndarray, support: np.ndarray, n_predicted: np.ndarray) -> None:
        self.correct, self.support, self.n_predicted = correct, support, n_predicted

    @property
    def f1(self) -> np.ndarray:
        """F1 of each label (L,); 0 if no prediction is correct."""
        return 2 * self.correct / np.maximum(self.n_predicted + self.support, 1)

    @property
    def macro_f1(self) -> float:
        is_counted = self.n_predicted + self.support > 0
        return float(self.f1[is_counted].mean()) if is_counted.any() else 0.0

    @property
    def micro_f1(self) -> float:
        return float(2 * self.correct.sum() / max(1, self.n_predicted.sum() + self.support.sum()))


class MultiLabelPredictions:
    """Predictions of a classifier with several labels per text.

    Args:
        predicted, targets: Predicted and true labels of each text.
        labels: Names of the labels.
        probabilities: Probability of each label; None if they are not known.
        truncated: Number of texts whose end the model did not see.

    Raises:
        ValueError: If the shapes differ, or there are no predictions.
    """

    def __init__(
        self,
        predicted: Bool[np.ndarray, "N L"],
        targets: Bool[np.ndarray, "N L"],
        labels: tuple[str, ...],
        *,
        probabilities: Float[np.ndarray, "N L"] | None = None,
        truncated: int = 0,
    ) -> None:
        shape = predicted.shape
        if shape != targets.shape or predicted.ndim != 2 or shape[1] != len(labels):
            raise ValueError(
                f"expected predictions and labels of shape (N, {len(labels)}), got {shape} and {targets.shape}"
            )
        if not len(targets):
            raise ValueError("nothing to score; pass at least one prediction")
        if probabilities is not None and probabilities.shape != shape:
            raise ValueError(f"expected probabilities {shape}, got {probabilities.shape}")
        self.predicted, self.targets, self.labels = predicted, targets, labels
        self.probabilities, self.truncated = probabilities, truncated

    @cached_property
    def weighted(self) -> WeightedScores:
        """Scores as functions of the weights of the texts."""
        has_label = (",".join(np.array(self.labels)[row].tolist()) for row in self.targets)
        return WeightedScores(
            names=COUNTED if self.probabilities is None else COUNTED + RANKED,
            documents=len(self.targets),
            measure=self._measure,
            digest=digest(*has_label),
            size=self.targets.size,
            biased=frozenset({"ece"}),
        )

    def scores(self, *, resamples: int = RESAMPLES) -> MultiLabelScores:
        """Return the scores, with intervals unless `resamples` is 0."""
        weights = np.ones(len(self.targets))
        counts = self._count(self.predicted, weights)
        constant_labels = np.broadcast_to(2 * counts.support > len(weights), self.targets.shape)
        constant = self._count(constant_labels, weights)
        values = {name: None if np.isnan(value) else value for name, value in self.weighted.values().items()}
        return MultiLabelScores(
            f1=counts.macro_f1,
            micro_f1=counts.micro_f1,
            exact_match=values["exact_match"] or 0.0,
            auroc=values.get("auroc"),
            average_precision=values.get("average_precision"),
            ece=values.get("ece"),
            intervals=self.weighted.intervals(resamples=resamples),
            constant_f1=constant.macro_f1,
            constant_micro_f1=constant.micro_f1,
            constant_exact_match=float((constant_labels == self.targets).all(1).mean()),
            count=len(self.targets),
            labels=self.labels,
            per_label=per_label_scores(
                self.labels,
                correct=counts.correct,
                support=counts.support,
                n_predicted=counts.n_predicted,
                f1=counts.f1,
                ranked=self._ranked and self._ranked.scores(weights),
            ),
            calibration=() if self._calibration is None else self._calibration.bins(),
            truncated=self.truncated,
        )

    def _count(self, predicted: Bool[np.ndarray, "N L"], weights: Float[np.ndarray, " N"]) -> _Counts:
        return _Counts(weights @ (predicted & self.targets), weights @ self.targets, weights @ predicted)

    @cached_property
    def _exact(self) -> Bool[np.ndarray, " N"]:
        return (self.predicted == self.targets).all(1)

    @cached_property
    def _ranked(self) -> RankedLabels | None:
        return None if self.probabilities is None else RankedLabels(self.probabilities, self.targets)

    @cached_property
    def _calibration(self) -> Calibration | None:
        return None if self.probabilities is None else Calibration(self.probabilities.ravel(), self.targets.ravel())

    def _measure(self, weights: Float[np.ndarray, " N"]) -> list[float]:
        counts = self._count(self.predicted, weights)
        scores = [counts.macro_f1, counts.micro_f1, float(weights @ self._exact / weights.sum())]
        if self._ranked is not None and self._calibration is not None:
            scores += map(mean_defined, self._ranked.scores(weights))
            scores.append(self._calibration.ece(np.repeat(weights, len(self.labels))))
        return scores


def multi_label_scores(
    predicted: np.ndarray,
    true_labels: np.ndarray,
    labels: tuple[str, ...],
    *,
    probabilities: Float[np.ndarray, "N L"] | None = None,
    resamples: int = RESAMPLES,
) -> MultiLabelScores:
    """Return the scores of predictions (N, L) for true labels (N, L), both True if a text has a label.

    Args:
        predicted: Predicted labels.
        true_labels: True labels.
        labels: Names of the labels.
        probabilities: Probability of each label, for AUROC, average precision and the calibration error.
        resamples: Number of resamples of the intervals; 0 for no intervals.

    Raises:
        ValueError: If the shapes differ, or there are no predictions.
    """
    predictions, targets = np.asarray(predicted, dtype=bool), np.asarray(true_labels, dtype=bool)
    return MultiLabelPredictions(predictions, targets, labels, probabilities=probabilities).scores(resamples=resamples)


def predict_multi_label(
    model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, *, batch_tokens: int = BATCH_TOKENS
) -> MultiLabelPredictions:
    """Return the predictions of a classifier for labeled examples, whose labels are matched by name.

    Arguments and errors are those of `score_multi_label`.
    """
    labels = check_head(model, labeled, "multi_label_classification").labels
    places = find_places(labeled, labels)
    if not len(labeled):
        raise UserError("no texts to score; pass at least one")
    targets = np.zeros((len(labeled), len(labels)), dtype=bool)
    probabilities = np.zeros(targets.shape, dtype=np.float32)
    for numbers, logits, batch_targets in read_logits(model, tokenizer, labeled, batch_tokens):
        probabilities[numbers] = label_probabilities(logits)
        model_targets = np.zeros((len(numbers), len(labels)), dtype=bool)  # in the order of the model's labels
        model_targets[:, places[places >= 0]] = batch_targets[:, places >= 0] > 0
        targets[numbers] = model_targets
    return MultiLabelPredictions(
        probabilities > THRESHOLD,
        targets,
        labels,
        probabilities=probabilities,
        truncated=int((labeled.row_lengths > model.max_len).sum()),
    )


def score_multi_label(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    labeled: LabeledExamples,
    *,
    batch_tokens: int = BATCH_TOKENS,
    resamples: int = RESAMPLES,
) -> MultiLabelScores:
    """Return the scores of a classifier on labeled examples, whose labels are matched by name.

    Args:
        model: The classifier.
        tokenizer: Its tokenizer.
        labeled: Labeled examples.
        batch_tokens: Maximum number of tokens per batch, including padding; a longer text is a separate batch.
        resamples: Number of resamples of the intervals; 0 for no intervals.

    Raises:
        ValueError: If the model has no classifier, or the model or the examples are not for several labels per text.
        UserError: If the model lacks a label of the examples, there are no texts, the tokenizer has no bos or eos, or
            an output of the model is not finite.
    """
    return predict_multi_label(model, tokenizer, labeled, batch_tokens=batch_tokens).scores(resamples=resamples)


def label_probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each label in float64."""
    return 1 / (1 + np.exp(-logits.astype(np.float64).clip(-700, 700)))

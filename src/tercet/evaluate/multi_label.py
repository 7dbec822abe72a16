"""Scores of a classifier with several labels per text, compared with a constant prediction.

    F1 = 2 correct / (predicted + true)    micro: from the counts of all labels; macro: mean of the F1 of each label

As for single labels, macro F1 excludes labels that neither occur nor were predicted. Exact match is the fraction of
texts with exactly their labels, which scikit-learn calls (subset) accuracy. The constant prediction is the set of
labels that more than half of the texts have, so it uses only label frequencies.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tercet.config import UserError
from tercet.data import LabeledExamples
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.evaluate.label_logits import check_head, find_places, read_logits
from tercet.evaluate.per_label import per_label_scores, per_label_table
from tercet.evaluate.score_summary import ScoreSummary
from tercet.messages import counted
from tercet.models import EncoderOnly
from tercet.notebook import View
from tercet.objectives import THRESHOLD
from tercet.tokens import Tokenizer

TEXTS_PER_BLOCK = 1024  # number of texts whose labels are counted together
Rows = Iterator[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, kw_only=True, repr=False)
class MultiLabelScores(ScoreSummary):
    """Scores of a classifier with several labels per text.

    Attributes:
        f1: Macro F1: mean of the F1 of each label that occurs or was predicted.
        micro_f1: F1 of all labels together.
        exact_match: Fraction of texts with exactly their labels.
        constant_f1, constant_micro_f1, constant_exact_match: Scores of the constant prediction.
        count: Number of texts.
        labels: Labels in the order of the model.
        per_label: For each label, a dictionary with its "precision", "recall", "f1" and "count".
        threshold: Probability above which a label is predicted.
        truncated: Number of texts whose end the model did not see.
    """

    f1: float
    micro_f1: float
    exact_match: float
    constant_f1: float
    constant_micro_f1: float
    constant_exact_match: float
    count: int
    labels: tuple[str, ...]
    per_label: dict[str, dict[str, float]]
    threshold: float = THRESHOLD
    truncated: int = 0

    def view(self) -> View:
        """Return the scores of each label, then those of all labels next to the constant prediction."""
        facts = [
            f"micro F1 {self.micro_f1:.1%} (constant prediction {self.constant_micro_f1:.1%})",
            f"macro F1 {self.f1:.1%} ({self.constant_f1:.1%})",
            f"exact match {self.exact_match:.1%} ({self.constant_exact_match:.1%})",
            counted(self.count, "text", "texts"),
            *([f"{self.truncated:,} cut"] if self.truncated else []),
        ]
        return View((per_label_table(self.per_label), "", "; ".join(facts)))


@dataclass
class _Counts:
    """Counts of texts.

    Attributes:
        correct, support, n_predicted: (L,) number of texts for which each label is predicted correctly, is true, and is
            predicted.
        exact: Number of texts with exactly their labels.
        texts: Number of texts.
    """

    correct: np.ndarray
    support: np.ndarray
    n_predicted: np.ndarray
    exact: int = 0
    texts: int = 0

    @classmethod
    def of(cls, rows: Rows, n_labels: int) -> "_Counts":
        """Return the counts of blocks of texts: pairs of predictions and true labels, both (B, L) bool."""
        correct, support, n_predicted = np.zeros((3, n_labels), dtype=np.int64)
        counts = cls(correct=correct, support=support, n_predicted=n_predicted)
        for predicted, true in rows:
            counts.correct += (predicted & true).sum(0)
            counts.support += true.sum(0)
            counts.n_predicted += predicted.sum(0)
            counts.exact += int((predicted == true).all(1).sum())
            counts.texts += len(true)
        return counts

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

    @property
    def exact_match(self) -> float:
        return self.exact / self.texts


def multi_label_scores(predicted: np.ndarray, true_labels: np.ndarray, labels: tuple[str, ...]) -> MultiLabelScores:
    """Return the scores of predictions (N, L) for true labels (N, L), both True if a text has a label.

    Raises:
        ValueError: If the shapes differ, or there are no predictions.
    """
    predictions, targets = np.asarray(predicted, dtype=bool), np.asarray(true_labels, dtype=bool)
    if predictions.shape != targets.shape or predictions.ndim != 2 or predictions.shape[1] != len(labels):
        raise ValueError(
            f"expected predictions and labels of shape (N, {len(labels)}), got {predictions.shape} and {targets.shape}"
        )
    if not len(targets):
        raise ValueError("nothing to score; pass at least one prediction")
    counts = _Counts.of(iter([(predictions, targets)]), len(labels))
    constant = np.broadcast_to(_constant(counts), targets.shape)
    return _make_scores(counts, _Counts.of(iter([(constant, targets)]), len(labels)), labels)


def score_multi_label(
    model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, *, batch_tokens: int = BATCH_TOKENS
) -> MultiLabelScores:
    """Return the scores of a classifier on labeled examples, whose labels are matched by name.

    Args:
        model: The classifier.
        tokenizer: Its tokenizer.
        labeled: Labeled examples.
        batch_tokens: Maximum number of tokens per batch, including padding; a longer text is a separate batch.

    Raises:
        ValueError: If the model has no classifier, or the model or the examples are not for several labels per text.
        UserError: If the model lacks a label of the examples, there are no texts, the tokenizer has no bos or eos, or
            an output of the model is not finite.
    """
    labels = check_head(model, labeled, "multi_label_classification").labels
    places = find_places(labeled, labels)
    if not len(labeled):
        raise UserError("no texts to score; pass at least one")

    def to_model_order(targets: np.ndarray) -> np.ndarray:
        """Reorder targets (B, K) of the texts to (B, L) bool in the order of the model's labels."""
        model_targets = np.zeros((len(targets), len(labels)), dtype=bool)
        model_targets[:, places[places >= 0]] = targets[:, places >= 0] > 0
        return model_targets

    counts = _Counts.of(
        (
            (probabilities(logits) > THRESHOLD, to_model_order(targets))
            for _, logits, targets in read_logits(model, tokenizer, labeled, batch_tokens)
        ),
        len(labels),
    )
    constant = _constant(counts)
    numbers = np.arange(len(labeled))
    blocks = (
        to_model_order(labeled.targets(numbers[i : i + TEXTS_PER_BLOCK]))
        for i in range(0, len(labeled), TEXTS_PER_BLOCK)
    )  # (B, L)
    constant_counts = _Counts.of(((np.broadcast_to(constant, true.shape), true) for true in blocks), len(labels))
    truncated = int((labeled.row_lengths > model.max_len).sum())
    return replace(_make_scores(counts, constant_counts, labels), truncated=truncated)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each label in float64."""
    return 1 / (1 + np.exp(-logits.astype(np.float64).clip(-700, 700)))


def _constant(counts: _Counts) -> np.ndarray:
    """Return (L,) bool: the labels that more than half of the texts have."""
    return 2 * counts.support > counts.texts


def _make_scores(counts: _Counts, constant: _Counts, labels: tuple[str, ...]) -> MultiLabelScores:
    return MultiLabelScores(
        f1=counts.macro_f1,
        micro_f1=counts.micro_f1,
        exact_match=counts.exact_match,
        constant_f1=constant.macro_f1,
        constant_micro_f1=constant.micro_f1,
        constant_exact_match=constant.exact_match,
        count=counts.texts,
        labels=labels,
        per_label=per_label_scores(
            labels,
            correct=counts.correct,
            support=counts.support,
            n_predicted=counts.n_predicted,
            f1=counts.f1,
        ),
    )

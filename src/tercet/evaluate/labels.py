"""Scores of a classifier, compared with always predicting the most frequent label.

    precision = correct / predicted     recall = correct / true     F1 = 2 correct / (predicted + true)

F1 is the mean over all labels that occur or were predicted, with equal weights (macro), as in scikit-learn; a label
that was never predicted correctly has F1 = 0. If words are labeled, the counts are of words.
"""

from collections.abc import Sequence
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
from tercet.objectives import IGNORE_INDEX
from tercet.tokens import Tokenizer

MAX_MISTAKES = 5  # number of the most frequent mistakes that are listed below the table


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelScores(ScoreSummary):
    """Scores of a classifier.

    Attributes:
        accuracy: Fraction of texts, or words, with the correct label.
        f1: Macro F1: mean of the F1 of each label that occurs or was predicted.
        majority: Fraction of the most frequent label, which is the accuracy of always predicting it.
        count: Number of texts, or words.
        labels: Labels in the order of `confusion`.
        per_label: For each label, a dictionary with its "precision", "recall", "f1" and "count".
        confusion: Counts by true label (rows) and predicted label (columns).
        truncated: Number of texts whose end the model did not see.
    """

    accuracy: float
    f1: float
    majority: float
    count: int
    labels: tuple[str, ...]
    per_label: dict[str, dict[str, float]]
    confusion: tuple[tuple[int, ...], ...]
    truncated: int = 0

    def view(self) -> View:
        """Return the scores of each label, then the most frequent mistakes."""
        facts = [
            f"accuracy {self.accuracy:.1%}",
            f"macro F1 {self.f1:.1%}",
            f"most frequent label {self.majority:.1%}",
            counted(self.count, "label", "labels"),
            *([f"{counted(self.truncated, 'text', 'texts')} cut"] if self.truncated else []),
        ]
        mistakes = [
            (count, f"{self.labels[row]} for {self.labels[column]}")
            for row, counts in enumerate(self.confusion)
            for column, count in enumerate(counts)
            if row != column and count
        ]
        worst = sorted(mistakes, key=lambda mistake: (-mistake[0], mistake[1]))[:MAX_MISTAKES]
        listing = "; ".join(f"{name} {count:,}" for count, name in worst)
        mistake_lines = [f"most frequent mistakes (true for predicted): {listing}"] if listing else []
        return View((per_label_table(self.per_label), "", "; ".join(facts), *mistake_lines))


def label_scores(
    predicted: Sequence[int] | np.ndarray, true_labels: Sequence[int] | np.ndarray, labels: Sequence[str]
) -> LabelScores:
    """Return the scores of predictions (N,) for true labels (N,), both as indices in `labels`.

    Raises:
        ValueError: If the shapes differ, there are no predictions, or an index is out of range.
    """
    predictions, targets = np.asarray(predicted, dtype=np.int64), np.asarray(true_labels, dtype=np.int64)
    if predictions.shape != targets.shape or predictions.ndim != 1:
        raise ValueError(f"expected one prediction per label, got shapes {predictions.shape} and {targets.shape}")
    if not len(targets):
        raise ValueError("nothing to score; pass at least one prediction")
    lowest, highest = min(predictions.min(), targets.min()), max(predictions.max(), targets.max())
    if lowest < 0 or highest >= len(labels):
        raise ValueError(f"label indices are {lowest} to {highest}, but there are {len(labels)} labels")
    table = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(table, (targets, predictions), 1)
    correct, support, n_predicted = table.diagonal(), table.sum(1), table.sum(0)
    f1 = 2 * correct / np.maximum(n_predicted + support, 1)
    return LabelScores(
        accuracy=float(correct.sum() / len(targets)),
        f1=float(f1[n_predicted + support > 0].mean()),
        majority=float(support.max() / len(targets)),
        count=len(targets),
        labels=tuple(labels),
        per_label=per_label_scores(tuple(labels), correct=correct, support=support, n_predicted=n_predicted, f1=f1),
        confusion=tuple(tuple(row) for row in table.tolist()),
    )


def score_labels(
    model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, *, batch_tokens: int = BATCH_TOKENS
) -> LabelScores:
    """Return the scores of a classifier on labeled examples, whose labels are matched by name.

    The model stays on its device, and its mode (train or eval) is restored. The label of a text does not depend on the
    other texts of its batch.

    Args:
        model: The classifier.
        tokenizer: Its tokenizer.
        labeled: Labeled examples.
        batch_tokens: Maximum number of tokens per batch, including padding; a longer text is a separate batch.

    Raises:
        ValueError: If the model has no classifier, or the model or the examples are not for one label per text or word,
            or one is for texts and the other for words.
        UserError: If the model lacks a label of the examples, there are no labels to score, the tokenizer has no bos or
            eos, or an output of the model is not finite.
    """
    labels = check_head(model, labeled, "single_label_classification").labels
    places = find_places(labeled, labels)
    predicted, targets = list[np.ndarray](), list[np.ndarray]()
    for _, logits, true in read_logits(model, tokenizer, labeled, batch_tokens):
        real = true != IGNORE_INDEX
        predicted.append(logits[real].argmax(-1))
        targets.append(places[true[real]])
    if not sum(map(len, targets)):
        raise UserError("no labels to score; pass at least one labeled text or word")
    scores = label_scores(np.concatenate(predicted), np.concatenate(targets), labels)
    return replace(scores, truncated=int((labeled.row_lengths > model.max_len).sum()))

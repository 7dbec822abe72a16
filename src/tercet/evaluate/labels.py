"""How often a classifier is right, beside what always saying the commonest label reaches.

    precision = right / predicted     recall = right / there     F1 = 2 right / (predicted + there)

F1 is the mean over all labels that are there or were predicted, each counting the same (macro), as scikit-learn takes
it; a label that was never right has 0. Over tokens the counts are of words.
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
from tercet.models import EncoderOnly
from tercet.notebook import View
from tercet.objectives import IGNORE_INDEX
from tercet.tokens import Tokenizer

MAX_MISTAKES = 5  # of the commonest, below the table


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelScores(ScoreSummary):
    """Attributes:
    accuracy: share of texts, or words, with the right label.
    f1: the macro mean.
    majority: the share of the commonest label: what a constant answer reaches.
    count: texts, or words.
    labels: in the order of `confusion`.
    per_label: precision, recall, f1 and count of each label.
    confusion: how many of each label (rows) were called which (columns).
    truncated: texts of which the model did not see the end.
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
        """Return the figures of each label, then the most frequent mistakes."""
        facts = [
            f"accuracy {self.accuracy:.1%}",
            f"macro F1 {self.f1:.1%}",
            f"always the commonest {self.majority:.1%}",
            f"{self.count:,} labels",
            *([f"{self.truncated:,} texts cut"] if self.truncated else []),
        ]
        mistakes = [
            (count, f"{self.labels[row]} for {self.labels[column]}")
            for row, counts in enumerate(self.confusion)
            for column, count in enumerate(counts)
            if row != column and count
        ]
        worst = sorted(mistakes, key=lambda mistake: (-mistake[0], mistake[1]))[:MAX_MISTAKES]
        listing = "; ".join(f"{name} {count:,}" for count, name in worst)
        mistake_lines = [f"missed most (wanted for said): {listing}"] if listing else []
        return View((per_label_table(self.per_label), "", "; ".join(facts), *mistake_lines))


def label_scores(
    predicted: Sequence[int] | np.ndarray, true_labels: Sequence[int] | np.ndarray, labels: Sequence[str]
) -> LabelScores:
    """The scores of predictions (N,) against the true labels (N,), both as places in `labels`.

    Raises:
        ValueError: where they are not as many, are none, or are no places in `labels`.
    """
    predictions, targets = np.asarray(predicted, dtype=np.int64), np.asarray(true_labels, dtype=np.int64)
    if predictions.shape != targets.shape or predictions.ndim != 1:
        raise ValueError(f"{predictions.shape} predictions for {targets.shape} labels; give one for each")
    if not len(targets):
        raise ValueError("there is nothing to score; give at least one prediction")
    lowest, highest = min(predictions.min(), targets.min()), max(predictions.max(), targets.max())
    if lowest < 0 or highest >= len(labels):
        raise ValueError(f"numbers of labels go from {lowest} to {highest}, but there are {len(labels)} labels")
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
    model: EncoderOnly, tokenizer: Tokenizer, labelled: LabeledExamples, *, batch_tokens: int = BATCH_TOKENS
) -> LabelScores:
    """The scores of a classifier on `labelled`, whose labels are found among the model's by their names.

    Args:
        batch_tokens: tokens read at once, padding included; a longer text stands alone.

    The model stays on its device and gets its own train or eval mode back; a text's label does not depend on the texts
    beside it.

    Raises:
        ValueError: where the model has no classifier, or one over the other kind of thing.
        UserError: where `labelled` has a label that the model was not taught, or its outputs are not numbers.
    """
    labels = check_head(model, labelled, "single_label_classification").labels
    places = find_places(labelled, labels)
    predicted, targets = list[np.ndarray](), list[np.ndarray]()
    for logits, true in read_logits(model, tokenizer, labelled, batch_tokens):
        real = true != IGNORE_INDEX
        predicted.append(logits[real].argmax(-1))
        targets.append(places[true[real]])
    if not sum(map(len, targets)):
        raise UserError("no label is left to score; give texts with labels that the tokenizer leaves something of")
    scores = label_scores(np.concatenate(predicted), np.concatenate(targets), labels)
    return replace(scores, truncated=int((labelled.lengths + 2 > model.max_len).sum()))

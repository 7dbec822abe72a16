"""How often a classifier is right, beside what always saying the commonest label reaches.

    precision = right / predicted     recall = right / there     F1 = 2 right / (predicted + there)

F1 is the mean over all labels that are there or were predicted, each counting the same (macro), as scikit-learn takes
it; a label that was never right has 0. Over tokens the counts are of words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tercet.config import UserError
from tercet.data import Labelled, labelled_rows
from tercet.data.batching import BATCH_TOKENS, batch_by_length
from tercet.generation.sampling import DIVERGED
from tercet.models import EncoderOnly
from tercet.models.inference import inference_mode
from tercet.objectives import IGNORED, collate_labels, label_logits, move_batch
from tercet.tokens import Tokenizer

MISTAKES = 5  # of the commonest, below the table


@dataclass(frozen=True, kw_only=True)
class LabelScores:
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
    precision = correct / np.maximum(n_predicted, 1)
    recall = correct / np.maximum(support, 1)
    f1 = 2 * correct / np.maximum(n_predicted + support, 1)
    return LabelScores(
        accuracy=float(correct.sum() / len(targets)),
        f1=float(f1[n_predicted + support > 0].mean()),
        majority=float(support.max() / len(targets)),
        count=len(targets),
        labels=tuple(labels),
        per_label={
            label: {
                "precision": float(precision[place]),
                "recall": float(recall[place]),
                "f1": float(f1[place]),
                "count": int(support[place]),
            }
            for place, label in enumerate(labels)
        },
        confusion=tuple(tuple(row) for row in table.tolist()),
    )


def score_labels(
    model: EncoderOnly, tokenizer: Tokenizer, labelled: Labelled, *, batch_tokens: int = BATCH_TOKENS
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
    classifier = model.spec.classifier
    if classifier is None:
        raise ValueError("the model has no classifier; train one on labelled texts")
    if classifier.over != labelled.over:
        raise ValueError(f"the model classifies {classifier.over} and the labels are of {labelled.over}")
    places = _places(labelled, classifier.labels)
    predicted, wanted = list[np.ndarray](), list[np.ndarray]()
    for labels, true in _predictions(model, tokenizer, labelled, batch_tokens):
        predicted.append(labels)
        wanted.append(places[true])
    if not sum(map(len, wanted)):
        raise UserError("no label is left to score; give texts with labels that the tokenizer leaves something of")
    scores = label_scores(np.concatenate(predicted), np.concatenate(wanted), classifier.labels)
    return replace(scores, truncated=int((labelled.lengths + 2 > model.max_len).sum()))


def label_dict(scores: LabelScores) -> dict[str, Any]:
    """For JSON."""
    return asdict(scores)


def label_table(scores: LabelScores) -> Group:
    """For people: each label with its numbers, and below which ones are taken for which."""
    table = Table("", "precision", "recall", "F1", "count", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for label, row in sorted(scores.per_label.items(), key=lambda item: -item[1]["count"]):
        numbers = f"{row['precision']:.1%}", f"{row['recall']:.1%}", f"{row['f1']:.1%}", f"{row['count']:,}"
        table.add_row(Text(label), *numbers)
    facts = [
        f"accuracy {scores.accuracy:.1%}",
        f"macro F1 {scores.f1:.1%}",
        f"always the commonest {scores.majority:.1%}",
        f"{scores.count:,} labels",
        *([f"{scores.truncated:,} texts cut"] if scores.truncated else []),
    ]
    mistakes = [
        (count, f"{scores.labels[row]} for {scores.labels[column]}")
        for row, counts in enumerate(scores.confusion)
        for column, count in enumerate(counts)
        if row != column and count
    ]
    worst = sorted(mistakes, key=lambda mistake: (-mistake[0], mistake[1]))[:MISTAKES]
    listed = "; ".join(f"{name} {count:,}" for count, name in worst)
    return Group(
        table, "", Text("; ".join(facts)), *([Text(f"missed most (wanted for said): {listed}")] if listed else [])
    )


def _places(labelled: Labelled, known: tuple[str, ...]) -> np.ndarray:
    """The model's number of each label of the texts'."""
    used = set(np.unique(labelled.labels[labelled.labels != IGNORED]).tolist())
    missing = [name for number, name in enumerate(labelled.names) if number in used and name not in known]
    if missing:
        raise UserError(
            f"the model was not taught the label {missing[0]!r}; it knows {', '.join(map(repr, known[:12]))}"
            f"{' and more' if len(known) > 12 else ''}: correct the labels, or train on texts with these"
        )
    return np.array([known.index(name) if name in known else -1 for name in labelled.names])


def _predictions(
    model: EncoderOnly, tokenizer: Tokenizer, labelled: Labelled, batch_tokens: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """In batches: what the model says and what was wanted, both as numbers."""
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if bos is None or eos is None:
        raise UserError("the tokenizer has no token for the beginning or the end: train one for an encoder")
    special = {"bos": bos, "eos": eos, "pad": tokenizer.pad_id or 0}
    lengths = np.minimum(labelled.lengths + 2, model.max_len)
    for numbers in batch_by_length(lengths, batch_tokens):
        rows = labelled_rows(labelled, np.array(numbers), max_len=model.max_len, **special)
        batch = collate_labels(rows)
        with inference_mode(model.modules()):
            logits = label_logits(model, move_batch(batch, model)).cpu()  # (N, L)
        targets = batch.targets.flatten()
        real = targets != IGNORED
        if not bool(torch.isfinite(logits[real]).all()):
            raise UserError(DIVERGED)
        yield logits[real].argmax(-1).numpy(), targets[real].numpy()

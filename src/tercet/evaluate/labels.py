"""Scores of a classifier, compared with always predicting the most frequent label.

    precision = correct / predicted     recall = correct / true     F1 = 2 correct / (predicted + true)
    MCC = (n sum(correct) - sum(true predicted)) / sqrt((n² - sum(true²)) (n² - sum(predicted²)))    Gorodkin 2004

F1 is the mean over all labels that occur or were predicted, with equal weights (macro), as in scikit-learn; a label
that was never predicted correctly has F1 = 0. MCC is 0 if all true or all predicted labels are equal. AUROC and average
precision are in `ranked_labels`, the calibration error is in `calibration`. If words are labeled, the counts are of
words, and the 95 % intervals are those of the bootstrap over texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

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
from tercet.objectives import IGNORE_INDEX
from tercet.tokens import Tokenizer

MAX_MISTAKES = 5  # number of the most frequent mistakes that are listed below the table
COUNTED, RANKED = ("accuracy", "f1", "mcc"), ("auroc", "average_precision", "ece")  # the latter need probabilities


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelScores(PredictionScores):
    """Scores of a classifier.

    Attributes:
        accuracy: Fraction of texts, or words, with the correct label.
        f1: Macro F1: mean of the F1 of each label that occurs or was predicted.
        mcc: Matthews correlation coefficient, -1 to 1; 0 for a prediction that does not depend on the text.
        auroc: Area under the ROC curve, macro mean over the labels, each against all others. None without
            probabilities, or if there is only one true label; the following scores likewise.
        average_precision: Area under the curve of precision and recall, macro mean over the labels.
        ece: Expected calibration error of the predicted label's probability.
        intervals: 95 % interval of each of these scores; empty if they were not computed.
        majority: Fraction of the most frequent label, which is the accuracy of always predicting it.
        count: Number of texts, or words.
        labels: Labels in the order of `confusion`.
        per_label: For each label, a dictionary with its "precision", "recall", "f1" and "count", and with its "auroc"
            and "average_precision" against all other labels if they are defined.
        confusion: Counts by true label (rows) and predicted label (columns).
        calibration: Bins of `ece`; empty without probabilities.
        truncated: Number of texts whose end the model did not see.
    """

    accuracy: float
    f1: float
    mcc: float
    auroc: float | None
    average_precision: float | None
    ece: float | None
    intervals: dict[str, Interval]
    majority: float
    count: int
    labels: tuple[str, ...]
    per_label: dict[str, dict[str, float]]
    confusion: tuple[tuple[int, ...], ...]
    calibration: tuple[CalibrationBin, ...]
    truncated: int = 0

    def view(self) -> View:
        """Return the scores of each label, then those of all labels, and the most frequent mistakes."""
        facts = [
            counted(self.count, "prediction", "predictions"),
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
        tables = (per_label_table(self.per_label), "", self._table(), *self.metrics_table())
        return View((*tables, "", "; ".join(facts), *mistake_lines))

    def _table(self) -> Table:
        numbers = (
            ("accuracy", self.accuracy, ".1%"),
            ("f1", self.f1, ".1%"),
            ("mcc", self.mcc, ".3f"),
            ("auroc", self.auroc, ".3f"),
            ("average_precision", self.average_precision, ".3f"),
            ("ece", self.ece, ".1%"),
        )
        baselines = {"accuracy": f"{self.majority:.1%}", "mcc": "0.000", "auroc": "0.500"}
        rows = [
            (
                TITLES[name], f"{number:{style}}", format_interval(self.intervals.get(name), style),
                baselines.get(name, ""),
            )
            for name, number, style in numbers
            if number is not None
        ]  # fmt: skip
        return Table(header=("", "model", "95 % interval", "most frequent label"), rows=rows)


TITLES = {
    "accuracy": "accuracy",
    "f1": "macro F1",
    "mcc": "MCC",
    "auroc": "AUROC (macro)",
    "average_precision": "average precision (macro)",
    "ece": f"calibration error (ECE, {N_BINS} bins)",
}


class LabelPredictions:
    """Predictions of a classifier for labeled texts or words.

    Args:
        predicted, targets: Predicted and true labels as indices in `labels`.
        labels: Names of the labels.
        probabilities: Probability of each label; None if they are not known.
        documents: Number of the text of each prediction, from 0; None for one prediction per text.
        truncated: Number of texts whose end the model did not see.

    Raises:
        ValueError: If the shapes differ, there are no predictions, or an index is out of range.
    """

    def __init__(
        self,
        predicted: Int[np.ndarray, " N"],
        targets: Int[np.ndarray, " N"],
        labels: Sequence[str],
        *,
        probabilities: Float[np.ndarray, "N L"] | None = None,
        documents: Int[np.ndarray, " N"] | None = None,
        truncated: int = 0,
    ) -> None:
        if predicted.shape != targets.shape or predicted.ndim != 1:
            raise ValueError(f"expected one prediction per label, got shapes {predicted.shape} and {targets.shape}")
        if not len(targets):
            raise ValueError("nothing to score; pass at least one prediction")
        lowest, highest = min(predicted.min(), targets.min()), max(predicted.max(), targets.max())
        if lowest < 0 or highest >= len(labels):
            raise ValueError(f"label indices are {lowest} to {highest}, but there are {len(labels)} labels")
        if probabilities is not None and probabilities.shape != (len(targets), len(labels)):
            raise ValueError(f"expected probabilities ({len(targets)}, {len(labels)}), got {probabilities.shape}")
        self.predicted, self.targets, self.labels = predicted, targets, tuple(labels)
        self.probabilities, self.truncated = probabilities, truncated
        # Texts without a label are not resampled.
        self.documents = None if documents is None else np.unique(documents, return_inverse=True)[1]

    @cached_property
    def weighted(self) -> WeightedScores:
        """Scores as functions of the weights of the texts."""
        n_labels = len(self.labels)
        names = COUNTED if self.probabilities is None else COUNTED + RANKED
        return WeightedScores(
            names=names,
            documents=len(self.targets) if self.documents is None else int(self.documents.max()) + 1,
            measure=self._measure,
            digest=digest(*(self.labels[target] for target in self.targets.tolist())),
            size=len(self.targets) * (n_labels if self.probabilities is not None else 1),
            biased=frozenset({"ece"}),
        )

    def scores(self, *, resamples: int = RESAMPLES) -> LabelScores:
        """Return the scores, with intervals unless `resamples` is 0."""
        n_labels = len(self.labels)
        table = np.zeros((n_labels, n_labels), dtype=np.int64)
        np.add.at(table, (self.targets, self.predicted), 1)
        correct, support, n_predicted = table.diagonal(), table.sum(1), table.sum(0)
        ranked = self._ranked and self._ranked.scores(np.ones(len(self.targets)))
        values = {name: None if np.isnan(value) else value for name, value in self.weighted.values().items()}
        return LabelScores(
            accuracy=float(correct.sum() / len(self.targets)),
            f1=values["f1"] or 0.0,
            mcc=values["mcc"] or 0.0,
            auroc=values.get("auroc"),
            average_precision=values.get("average_precision"),
            ece=values.get("ece"),
            intervals=self.weighted.intervals(resamples=resamples),
            majority=float(support.max() / len(self.targets)),
            count=len(self.targets),
            labels=self.labels,
            per_label=per_label_scores(
                self.labels,
                correct=correct,
                support=support,
                n_predicted=n_predicted,
                f1=2 * correct / np.maximum(n_predicted + support, 1),
                ranked=ranked,
            ),
            confusion=tuple(tuple(row) for row in table.tolist()),
            calibration=() if self._calibration is None else self._calibration.bins(),
            truncated=self.truncated,
        )

    @cached_property
    def _ranked(self) -> RankedLabels | None:
        if self.probabilities is None:
            return None
        return RankedLabels(self.probabilities, self.targets[:, None] == np.arange(len(self.labels)))

    @cached_property
    def _calibration(self) -> Calibration | None:
        if self.probabilities is None:
            return None
        confidence = np.take_along_axis(self.probabilities, self.predicted[:, None], 1)[:, 0]
        return Calibration(confidence, self.predicted == self.targets)

    def _measure(self, document_weights: Float[np.ndarray, " D"]) -> list[float]:
        weights = document_weights if self.documents is None else document_weights[self.documents]
        n_labels, total = len(self.labels), weights.sum()
        support, n_predicted = (np.bincount(part, weights, n_labels) for part in (self.targets, self.predicted))
        correct = np.bincount(self.targets, weights * (self.predicted == self.targets), n_labels)
        f1 = 2 * correct / np.maximum(n_predicted + support, 1)
        varied = (total**2 - (support**2).sum()) * (total**2 - (n_predicted**2).sum())
        mcc = (total * correct.sum() - support @ n_predicted) / np.sqrt(varied) if varied > 0 else 0.0
        scores = [correct.sum() / total, f1[n_predicted + support > 0].mean(), mcc]
        if self._ranked is not None and self._calibration is not None:
            scores += [*map(mean_defined, self._ranked.scores(weights)), self._calibration.ece(weights)]
        return [float(score) for score in scores]


def label_scores(
    predicted: Sequence[int] | np.ndarray,
    true_labels: Sequence[int] | np.ndarray,
    labels: Sequence[str],
    *,
    probabilities: Float[np.ndarray, "N L"] | None = None,
    resamples: int = RESAMPLES,
) -> LabelScores:
    """Return the scores of predictions (N,) for true labels (N,), both as indices in `labels`.

    Args:
        predicted: Predicted labels.
        true_labels: True labels.
        labels: Names of the labels.
        probabilities: Probability of each label, for AUROC, average precision and the calibration error.
        resamples: Number of resamples of the intervals; 0 for no intervals.

    Raises:
        ValueError: If the shapes differ, there are no predictions, or an index is out of range.
    """
    predictions, targets = np.asarray(predicted, dtype=np.int64), np.asarray(true_labels, dtype=np.int64)
    return LabelPredictions(predictions, targets, labels, probabilities=probabilities).scores(resamples=resamples)


def predict_labels(
    model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, *, batch_tokens: int = BATCH_TOKENS
) -> LabelPredictions:
    """Return the predictions of a classifier for labeled examples, whose labels are matched by name.

    Arguments and errors are those of `score_labels`.
    """
    labels = check_head(model, labeled, "single_label_classification").labels
    places = find_places(labeled, labels)
    scored, targets, documents = [np.empty((0, len(labels)), np.float32)], list[np.ndarray](), list[np.ndarray]()
    for numbers, logits, true in read_logits(model, tokenizer, labeled, batch_tokens):
        real = true != IGNORE_INDEX
        scored.append(logits[real])
        targets.append(places[true[real]])
        documents.append(np.repeat(numbers, len(true) // len(numbers))[real])
    logits = np.concatenate(scored)
    if not len(logits):
        raise UserError("no labels to score; pass at least one labeled text or word")
    texts = np.concatenate(documents)
    order = np.argsort(texts, kind="stable")  # so that the intervals do not depend on the batches
    return LabelPredictions(
        logits.argmax(-1)[order],
        np.concatenate(targets)[order],
        labels,
        probabilities=_softmax(logits)[order],
        documents=texts[order],
        truncated=int((labeled.row_lengths > model.max_len).sum()),
    )


def score_labels(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    labeled: LabeledExamples,
    *,
    batch_tokens: int = BATCH_TOKENS,
    resamples: int = RESAMPLES,
) -> LabelScores:
    """Return the scores of a classifier on labeled examples, whose labels are matched by name.

    The model stays on its device, and its mode (train or eval) is restored. The label of a text does not depend on the
    other texts of its batch.

    Args:
        model: The classifier.
        tokenizer: Its tokenizer.
        labeled: Labeled examples.
        batch_tokens: Maximum number of tokens per batch, including padding; a longer text is a separate batch.
        resamples: Number of resamples of the intervals; 0 for no intervals.

    Raises:
        ValueError: If the model has no classifier, or the model or the examples are not for one label per text or word,
            or one is for texts and the other for words.
        UserError: If the model lacks a label of the examples, there are no labels to score, the tokenizer has no bos or
            eos, or an output of the model is not finite.
    """
    return predict_labels(model, tokenizer, labeled, batch_tokens=batch_tokens).scores(resamples=resamples)


def _softmax(logits: Float[np.ndarray, "N L"]) -> Float[np.ndarray, "N L"]:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)

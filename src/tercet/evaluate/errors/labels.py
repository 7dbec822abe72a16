"""Confusions of a classifier, and the wrong predictions in which it is most confident.

With several labels per text, each missing and each extra label of a text is a mistake: a label that is missing is
confused with no label, and the reverse.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Float

from tercet.checkpoint import Encoder
from tercet.config import UserError
from tercet.data import LabeledExamples
from tercet.evaluate.errors.selection import ErrorSelection
from tercet.evaluate.label_logits import check_head, find_places, read_logits
from tercet.evaluate.multi_label import label_probabilities
from tercet.evaluate.score_summary import ScoreSummary
from tercet.messages import counted, one_line, shorten
from tercet.notebook import Table, View
from tercet.objectives import IGNORE_INDEX, THRESHOLD

EXAMPLES = 3  # texts of each confusion
MAX_SHOWN = 120  # characters of a text in a table
NONE = "(none)"  # instead of a label that is missing, in tables


@dataclass(frozen=True, kw_only=True)
class WrongLabel:
    """A wrong prediction for a text or a word.

    Attributes:
        index: Number of the text in the data, from 0.
        text: The text, as the tokenizer decodes it.
        pair: The second text of a pair; None for a single text.
        word: The word, if words are labeled; None otherwise.
        true, predicted: Labels; None for an extra or a missing label of a text with several labels.
        probability: Probability of the prediction; of a missing label, that the text does not have it.
        true_probability: Probability of the true label; None with several labels per text.
    """

    index: int
    text: str
    pair: str | None
    word: str | None
    true: str | None
    predicted: str | None
    probability: float
    true_probability: float | None


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """How often a label is predicted instead of another one.

    Attributes:
        true, predicted: Labels, as in `WrongLabel`.
        count: Number of texts, or words.
        examples: The wrong predictions with the highest probabilities.
    """

    true: str | None
    predicted: str | None
    count: int
    examples: tuple[WrongLabel, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelErrors(ScoreSummary):
    """Confusions and wrong predictions of a classifier.

    Attributes:
        count: Number of labels to predict: texts or words, or texts times labels if a text has several labels.
        mistakes: Number of wrong ones among all texts.
        selected: Number of wrong ones among the texts that the filters select.
        confusions: Most frequent confusions among the selected texts.
        worst: Wrong predictions with the highest probabilities among the selected texts.
    """

    count: int
    mistakes: int
    selected: int
    confusions: tuple[Confusion, ...]
    worst: tuple[WrongLabel, ...]

    def view(self) -> View:
        """Return a table of the confusions and one of the texts."""
        confusions = [
            (
                f"{confusion.count:,}",
                confusion.true or NONE,
                confusion.predicted or NONE,
                describe_text(confusion.examples[0]) if confusion.examples else "",
            )
            for confusion in self.confusions
        ]
        rows = [
            (f"{wrong.index:,}", f"{wrong.probability:.1%}", wrong.true or NONE, wrong.predicted or NONE,
             describe_text(wrong))
            for wrong in self.worst
        ]  # fmt: skip
        first = Table(header=("count", "true", "predicted", "most confident mistake"), rows=confusions, left=(1, 2, 3),
                      flush=True)  # fmt: skip
        second = Table(header=("text", "confidence", "true", "predicted", ""), rows=rows, left=(2, 3, 4), flush=True)
        facts = f"{counted(self.mistakes, 'mistake', 'mistakes')} in {counted(self.count, 'label', 'labels')}"
        facts += "" if self.selected == self.mistakes else f", {self.selected:,} selected"
        return View((*((first, "", second, "") if self.worst else ()), facts))


def describe_text(wrong: WrongLabel) -> str:
    """Return the text of a wrong prediction in one line, after the word if words are labeled."""
    text = " | ".join(filter(None, (wrong.text, wrong.pair)))
    return ("" if wrong.word is None else f"[{wrong.word}] ") + shorten(one_line(text), MAX_SHOWN)


@dataclass(frozen=True)
class _Mistake:
    """A wrong prediction by numbers: of the text, of its token, and of the labels, which are -1 for no label."""

    text: int
    token: int
    true: int
    predicted: int
    probability: float
    true_probability: float | None


def find_label_errors(
    classifier: Encoder,
    labeled: LabeledExamples,
    selection: ErrorSelection,
    *,
    rare_tokens: np.ndarray | None,
    batch_tokens: int,
) -> LabelErrors:
    """Return the confusions and the most confident mistakes of a classifier.

    Args:
        classifier: The model.
        labeled: Labeled examples.
        selection: Errors to list.
        rare_tokens: Number of rare tokens of each text (N,), or None.
        batch_tokens: Maximum number of tokens per batch, including padding.

    Raises:
        UserError: If there are no labels, no text matches the selection, or as in `score_labels`.
    """
    selected, mistakes, count, wrong = selection.select(labeled.lengths, rare_tokens), list[_Mistake](), 0, 0
    find = _find_sets if labeled.problem_type == "multi_label_classification" else _find_single
    labels = check_head(classifier.model, labeled, labeled.problem_type).labels
    for found, n_labels in find(classifier, labeled, batch_tokens):
        count, wrong = count + n_labels, wrong + len(found)
        mistakes += [mistake for mistake in found if selected[mistake.text]]
    if not count:
        raise UserError("no labels to score; pass at least one labeled text or word")
    mistakes.sort(key=lambda mistake: (-mistake.probability, mistake.text, mistake.token, mistake.true))
    counts = Counter((mistake.true, mistake.predicted) for mistake in mistakes)
    frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: selection.top]

    def describe(chosen: Iterable[_Mistake], count: int) -> tuple[WrongLabel, ...]:
        return tuple(_describe(mistake, classifier, labeled, labels) for mistake in islice(chosen, count))

    confusions = list[Confusion]()
    for pair, number in frequent:
        examples = (mistake for mistake in mistakes if (mistake.true, mistake.predicted) == pair)
        true, predicted = (_name(labels, label) for label in pair)
        confusions.append(
            Confusion(true=true, predicted=predicted, count=number, examples=describe(examples, EXAMPLES))
        )
    return LabelErrors(
        count=count,
        mistakes=wrong,
        selected=len(mistakes),
        confusions=tuple(confusions),
        worst=describe(mistakes, selection.top),
    )


def _find_single(
    classifier: Encoder, labeled: LabeledExamples, batch_tokens: int
) -> Iterator[tuple[list[_Mistake], int]]:
    """Yield the mistakes of each batch and its number of labels, for one label per text or word."""
    labels = check_head(classifier.model, labeled, "single_label_classification").labels
    places = find_places(labeled, labels)
    for numbers, logits, targets in read_logits(classifier.model, classifier.tokenizer, labeled, batch_tokens):
        real = np.flatnonzero(targets != IGNORE_INDEX)
        row, column = np.divmod(real, len(targets) // len(numbers))
        true, chosen = places[targets[real]], logits[real].argmax(-1)
        wrong = np.flatnonzero(true != chosen)
        mistakes = [
            _Mistake(
                text=int(numbers[row[place]]),
                token=int(column[place]) - 1,
                true=int(true[place]),
                predicted=int(chosen[place]),
                probability=float(p[chosen[place]]),
                true_probability=float(p[true[place]]),
            )
            for place, p in zip(wrong.tolist(), _softmax(logits[real[wrong]]), strict=True)
        ]
        yield mistakes, len(real)


def _find_sets(
    classifier: Encoder, labeled: LabeledExamples, batch_tokens: int
) -> Iterator[tuple[list[_Mistake], int]]:
    """Yield the missing and extra labels of each batch and its number of texts times labels."""
    labels = check_head(classifier.model, labeled, "multi_label_classification").labels
    places = find_places(labeled, labels)
    for numbers, logits, targets in read_logits(classifier.model, classifier.tokenizer, labeled, batch_tokens):
        true = np.zeros(logits.shape, bool)
        true[:, places[places >= 0]] = targets[:, places >= 0] > 0
        p = label_probabilities(logits)
        mistakes = list[_Mistake]()
        for row, label in np.argwhere((p > THRESHOLD) != true).tolist():
            is_missing, probability = bool(true[row, label]), float(p[row, label])
            mistakes.append(
                _Mistake(
                    text=int(numbers[row]),
                    token=-1,
                    true=label if is_missing else -1,
                    predicted=-1 if is_missing else label,
                    probability=1 - probability if is_missing else probability,
                    true_probability=None,
                )
            )
        yield mistakes, p.size


def _softmax(logits: Float[np.ndarray, "N L"]) -> Float[np.ndarray, "N L"]:
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(-1, keepdims=True)


def _name(labels: tuple[str, ...], number: int) -> str | None:
    return None if number < 0 else labels[number]


def _describe(mistake: _Mistake, classifier: Encoder, labeled: LabeledExamples, labels: tuple[str, ...]) -> WrongLabel:
    text, pair = read_texts(classifier, labeled, mistake.text)
    word = None
    if labeled.over == "tokens":
        start, end = labeled.starts[mistake.text : mistake.text + 2].tolist()
        place = start + mistake.token
        later = np.flatnonzero(labeled.labels[place + 1 : end] != IGNORE_INDEX)
        stop = place + 1 + int(later[0]) if len(later) else end
        word = classifier.tokenizer.decode(labeled.ids[place:stop].tolist()).strip()
    return WrongLabel(
        index=mistake.text,
        text=text,
        pair=pair,
        word=word,
        true=_name(labels, mistake.true),
        predicted=_name(labels, mistake.predicted),
        probability=mistake.probability,
        true_probability=mistake.true_probability,
    )


def read_texts(classifier: Encoder, labeled: LabeledExamples, number: int) -> tuple[str, str | None]:
    """Return the text of an example, and the second text if it is a pair, as the tokenizer decodes them."""
    start, end = labeled.starts[number : number + 2].tolist()
    decode = classifier.tokenizer.decode
    if labeled.first_lengths is None:
        return decode(labeled.ids[start:end].tolist()), None
    middle = start + int(labeled.first_lengths[number])
    return decode(labeled.ids[start:middle].tolist()), decode(labeled.ids[middle:end].tolist())

"""Classification with an encoder: labels of texts or words with their probabilities, or numbers for texts.

A text may also be a pair of texts, if the model was trained on pairs. With `chunking`, a text that is longer than the
context is split, and its result is the mean of those of its chunks, weighted by their tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tercet.config import UserError
from tercet.data import encode_words
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.encoding.batches import HiddenBatch, encode_texts, frame_rows, map_hidden, pick_places
from tercet.encoding.chunks import Chunking, chunk_texts, mean_of_chunks
from tercet.messages import shorten
from tercet.models import Classifier, EncoderOnly
from tercet.notebook import MAX_REPR, Summary, Table, View, probability_table
from tercet.objectives import THRESHOLD
from tercet.objectives.batch import to_host
from tercet.spec import ProblemType
from tercet.tokens import Tokenizer

Texts = Sequence[str] | Sequence[tuple[str, str]]
TRUNCATION_NOTE = "the end of the text was cut off"


@dataclass(frozen=True, kw_only=True, repr=False)
class Classification(Summary):
    """Label of a text or a word.

    Attributes:
        label: Most likely label.
        probability: Probability of this label.
        scores: Probability of every label, most likely first; they sum to 1.
        truncated: True if the text exceeds the model's context and was cut.
        chunks: Number of chunks over which the result is averaged; 1 for a text that was not split.
    """

    label: str
    probability: float
    scores: dict[str, float]
    truncated: bool
    chunks: int = 1

    def view(self) -> View:
        notes = TRUNCATION_NOTE * self.truncated, _chunks_note(self.chunks)
        return View((probability_table(self.scores, of="label"), *notes))


@dataclass(frozen=True, kw_only=True, repr=False)
class MultiLabelClassification(Summary):
    """Labels of a text, of which it may have several or none.

    Attributes:
        labels: Labels with a probability above the threshold, most likely first.
        scores: Independent probability of every label, most likely first; they need not sum to 1.
        truncated: True if the text exceeds the model's context and was cut.
        chunks: Number of chunks over which the result is averaged; 1 for a text that was not split.
    """

    labels: tuple[str, ...]
    scores: dict[str, float]
    truncated: bool
    chunks: int = 1

    def view(self) -> View:
        selected_scores = {label: p for label, p in self.scores.items() if label in self.labels}
        rest = {label: p for label, p in self.scores.items() if label not in self.labels}
        below_threshold = ["below the threshold", probability_table(rest, of="label")] if rest else []
        notes = TRUNCATION_NOTE * self.truncated, _chunks_note(self.chunks)
        return View((probability_table(selected_scores, of="label"), *below_threshold, *notes))


@dataclass(frozen=True, kw_only=True, repr=False)
class Regression(Summary):
    """Number predicted for a text.

    Attributes:
        value: The number, in the unit of the training labels.
        truncated: True if the text exceeds the model's context and was cut.
        chunks: Number of chunks over which the result is averaged; 1 for a text that was not split.
    """

    value: float
    truncated: bool
    chunks: int = 1


@dataclass(frozen=True, kw_only=True, repr=False)
class Tagging(Summary):
    """Labels of the words of a text.

    Attributes:
        words: Words of the text.
        tags: Label of each word; None if the word is beyond the model's context, or if the tokenizer returns no tokens
            for it.
        truncated: True if the text exceeds the model's context and was cut.
    """

    words: tuple[str, ...]
    tags: "tuple[Classification | None, ...]"
    truncated: bool

    def __repr__(self) -> str:
        tagged_words = (f"{word}/{tag.label if tag else None}" for word, tag in zip(self.words, self.tags, strict=True))
        return f"Tagging({shorten(' '.join(tagged_words), MAX_REPR)})"

    def view(self) -> View:
        rows = [
            (word, "", "") if tag is None else (word, tag.label, f"{tag.probability:.1%}")
            for word, tag in zip(self.words, self.tags, strict=True)
        ]
        return View(
            (Table(header=("word", "label", "probability"), rows=rows, left=(0, 1)), TRUNCATION_NOTE * self.truncated)
        )


def classify(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Texts,
    *,
    chunking: Chunking | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Classification]:
    """Return the most likely label of each text, in the order of the texts.

    Args:
        model: Model with a classifier that assigns one label to each text.
        tokenizer: Tokenizer of the model.
        texts: Texts, or pairs of texts, to classify.
        chunking: Lengths of the chunks of long texts; None to truncate them. Pairs are always truncated.
        batch_tokens: Maximum number of tokens per batch, including padding.

    Raises:
        UserError: If the model has another classifier or none, the tokenizer has no bos or eos, or a text cannot be
            encoded.
    """
    head = _head(model, "texts", "single_label_classification")
    predictions = _predict(model, head, tokenizer, texts, chunking, batch_tokens)
    return [_make_classification(head.labels, row.tolist(), cut, chunks) for row, cut, chunks in predictions]


def classify_multi_label(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Texts,
    *,
    threshold: float = THRESHOLD,
    chunking: Chunking | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[MultiLabelClassification]:
    """Return the labels with a probability above `threshold` for each text, in the order of the texts.

    Args:
        model: Model with a classifier that assigns any number of labels to each text.
        tokenizer: Tokenizer of the model.
        texts: Texts, or pairs of texts, to classify.
        threshold: Probability above which a label is assigned.
        chunking: Lengths of the chunks of long texts; None to truncate them. Pairs are always truncated.
        batch_tokens: Maximum number of tokens per batch, including padding.

    Raises:
        UserError: If the model has another classifier or none, the tokenizer has no bos or eos, or a text cannot be
            encoded.
    """
    head = _head(model, "texts", "multi_label_classification")
    predictions = _predict(model, head, tokenizer, texts, chunking, batch_tokens)
    return [_make_multi_label(head.labels, row.tolist(), cut, chunks, threshold) for row, cut, chunks in predictions]


def regress(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Texts,
    *,
    chunking: Chunking | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Regression]:
    """Return the number that the model predicts for each text, in the order of the texts.

    Args:
        model: Model with a regression head.
        tokenizer: Tokenizer of the model.
        texts: Texts, or pairs of texts, to score.
        chunking: Lengths of the chunks of long texts; None to truncate them. Pairs are always truncated.
        batch_tokens: Maximum number of tokens per batch, including padding.

    Raises:
        UserError: If the model does not predict numbers, the tokenizer has no bos or eos, or a text cannot be encoded.
    """
    head = _head(model, "texts", "regression")
    predictions = _predict(model, head, tokenizer, texts, chunking, batch_tokens)
    return [_make_regression(head, row.item(), cut, chunks) for row, cut, chunks in predictions]


def tag(
    model: EncoderOnly, tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], *, batch_tokens: int = BATCH_TOKENS
) -> list[Tagging]:
    """Return the labels of the words of each sentence, which is a list of words.

    As in training, the label of a word is predicted at its first token.

    Raises:
        UserError: If the model does not label words, the tokenizer has no bos or eos, or a word cannot be encoded.
    """
    labels = _head(model, "tokens", "single_label_classification").labels
    words = encode_words(tokenizer, sentences)
    encoded_texts = frame_rows(tokenizer, [ids.tolist() for ids, _ in words], max_len=model.max_len)
    rows = encoded_texts.rows
    # Position in the row of each word's first token, after bos; None if it is beyond the context or does not exist.
    first_positions = [
        [int(first) + 1 if 0 <= first < len(row) - 2 else None for first in firsts]
        for (_, firsts), row in zip(words, rows, strict=True)
    ]

    read_positions = [
        [first_position for first_position in row if first_position is not None] for row in first_positions
    ]

    def probabilities(batch: HiddenBatch) -> tuple[Tensor, ...]:
        """Return, for each row, the probabilities (words, L) of the words that have a position."""
        p = model.classify(batch.hidden, batch.token_mask).softmax(-1)  # (B, T, L)
        places = [
            (slot, first_position)
            for slot, number in enumerate(batch.numbers)
            for first_position in read_positions[number]
        ]
        return to_host(pick_places(p, places)).split([len(read_positions[number]) for number in batch.numbers])

    predictions = map_hidden(
        model, [len(row) for row in rows], rows.__getitem__, probabilities,
        pad=tokenizer.pad_id, batch_tokens=batch_tokens,
    )  # fmt: skip
    return [
        Tagging(
            words=tuple(sentence),
            tags=tuple(
                None if first_position is None else _make_classification(labels, next(word_probabilities), cut)
                for first_position in row
            ),
            truncated=cut,
        )
        for sentence, row, word_probabilities, cut in zip(
            sentences, first_positions, (iter(p.tolist()) for p in predictions), encoded_texts.cut, strict=True
        )
    ]


def text_logits(
    model: EncoderOnly, tokenizer: Tokenizer, texts: Texts, batch_tokens: int
) -> tuple[list[Tensor], list[bool]]:
    """Return the logits (L,) of each text, on the CPU, and whether each text was truncated."""
    encoded_texts = encode_texts(tokenizer, texts, max_len=model.max_len)
    logits = row_logits(
        model, encoded_texts.rows, pad=tokenizer.pad_id, batch_tokens=batch_tokens,
        second_starts=encoded_texts.second_starts,
    )  # fmt: skip
    return logits, encoded_texts.cut


def row_logits(
    model: EncoderOnly,
    rows: Sequence[Sequence[int]],
    *,
    pad: int | None,
    batch_tokens: int = BATCH_TOKENS,
    second_starts: Sequence[int] | None = None,
) -> list[Tensor]:
    """Return the logits (L,) of each row of token ids, on the CPU; arguments as in `map_hidden`."""

    def logits(batch: HiddenBatch) -> list[Tensor]:
        return [*to_host(model.classify(batch.hidden, batch.token_mask))]  # (B, L)

    return map_hidden(
        model, [len(row) for row in rows], rows.__getitem__, logits, pad=pad, batch_tokens=batch_tokens,
        second_starts=second_starts,
    )  # fmt: skip


def _predict(
    model: EncoderOnly,
    head: Classifier,
    tokenizer: Tokenizer,
    texts: Texts,
    chunking: Chunking | None,
    batch_tokens: int,
) -> list[tuple[Tensor, bool, int]]:
    """Return for each text the outputs (L,) of the head, whether it was truncated, and its number of chunks."""
    if chunking is None or (texts and isinstance(texts[0], tuple)):
        logits, cuts = text_logits(model, tokenizer, texts, batch_tokens)
        outputs = mean_outputs(head, logits, [1] * len(cuts), [1] * len(cuts))
        return [(output, cut, 1) for output, cut in zip(outputs, cuts, strict=True)]
    chunked = chunk_texts(tokenizer, cast("Sequence[str]", texts), chunking)
    logits = row_logits(model, chunked.rows, pad=tokenizer.pad_id, batch_tokens=batch_tokens)
    outputs = mean_outputs(head, logits, chunked.tokens, chunked.counts)
    return [(output, False, count) for output, count in zip(outputs, chunked.counts, strict=True)]


ACTIVATIONS: dict[ProblemType, Callable[[Tensor], Tensor]] = {
    "single_label_classification": lambda logits: logits.softmax(-1),
    "multi_label_classification": torch.sigmoid,
    "regression": lambda logits: logits,
}


def mean_outputs(
    head: Classifier, logits: Sequence[Tensor], tokens: Sequence[int], counts: Sequence[int]
) -> list[Tensor]:
    """Return the outputs (L,) of a head for each text: the mean over its chunks, weighted by their tokens.

    Args:
        head: The head. Its outputs are probabilities, or a number in standard deviations of the training labels.
        logits: Logits (L,) of all chunks, in the order of the texts.
        tokens: Number of tokens of each chunk.
        counts: Number of chunks of each text.
    """
    activations = [ACTIVATIONS[head.problem_type](row) for row in logits]
    outputs, first = list[Tensor](), 0
    for count in counts:
        output = activations[first]
        if count > 1:
            values = torch.stack(activations[first : first + count]).numpy()  # (C, L)
            output = torch.from_numpy(mean_of_chunks(values, tokens[first : first + count]))
        outputs.append(output)
        first += count
    return outputs


def make_prediction(
    head: Classifier, outputs: Tensor, *, truncated: bool, chunks: int, threshold: float = THRESHOLD
) -> Classification | MultiLabelClassification | Regression:
    """Return the prediction for a text as `classify`, `classify_multi_label` or `regress` do.

    Args:
        head: Classifier of texts.
        outputs: (L,) from `mean_outputs`.
        truncated: True if the text was cut.
        chunks: Number of chunks of the text.
        threshold: Probability above which a label is assigned, if a text may have several.
    """
    match head.problem_type:
        case "single_label_classification":
            return _make_classification(head.labels, outputs.tolist(), truncated, chunks)
        case "multi_label_classification":
            return _make_multi_label(head.labels, outputs.tolist(), truncated, chunks, threshold)
        case "regression":
            return _make_regression(head, outputs.item(), truncated, chunks)


def _chunks_note(chunks: int) -> str:
    return f"averaged over {chunks} chunks of the text" if chunks > 1 else ""


FUNCTIONS: dict[ProblemType, tuple[str, str]] = {  # the predictions for texts, and the function that returns them
    "single_label_classification": ("labels", "classify"),
    "multi_label_classification": ("any number of labels", "classify_multi_label"),
    "regression": ("numbers", "regress"),
}


def _head(model: EncoderOnly, over: str, problem_type: ProblemType) -> Classifier:
    head = model.spec.classifier
    if head is None:
        raise UserError("the model has no classifier; train one on labeled texts")
    if (head.over, head.problem_type) != (over, problem_type):
        gives, function = FUNCTIONS[head.problem_type]
        gets, function = ("words", "tag") if head.over == "tokens" else ("texts", function)
        raise UserError(f"the model predicts {gives} for {gets}; use {function}()")
    return head


def _make_classification(
    labels: Sequence[str], probabilities: Sequence[float], cut: bool, chunks: int = 1
) -> Classification:
    scores = _rank(labels, probabilities)
    label, probability = next(iter(scores.items()))
    return Classification(label=label, probability=probability, scores=scores, truncated=cut, chunks=chunks)


def _make_multi_label(
    labels: Sequence[str], probabilities: Sequence[float], cut: bool, chunks: int, threshold: float
) -> MultiLabelClassification:
    scores = _rank(labels, probabilities)
    selected = tuple(label for label, probability in scores.items() if probability > threshold)
    return MultiLabelClassification(labels=selected, scores=scores, truncated=cut, chunks=chunks)


def _make_regression(head: Classifier, output: float, cut: bool, chunks: int) -> Regression:
    return Regression(value=head.target_mean + head.target_std * output, truncated=cut, chunks=chunks)


def _rank(labels: Sequence[str], probabilities: Sequence[float]) -> dict[str, float]:
    """Return the probability of each label, most likely first."""
    return dict(sorted(zip(labels, probabilities, strict=True), key=lambda pair: -pair[1]))

"""A label for each text, or for each word of it, with its probability."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tercet.config import UserError
from tercet.data import encode_words
from tercet.data.batching import BATCH_TOKENS
from tercet.encoding.batches import HiddenBatch, encode_texts, frame_rows, map_hidden
from tercet.models import EncoderOnly
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Classified:
    """Attributes:
    label: the likeliest.
    probability: of that label.
    scores: the probability of every label, likeliest first; together 1.
    truncated: whether the text was longer than the model takes, and was cut.
    """

    label: str
    probability: float
    scores: dict[str, float]
    truncated: bool


@dataclass(frozen=True, kw_only=True)
class Tagged:
    """Attributes:
    words: of the text.
    tags: one for each word; None where it stands behind what the model takes, or the tokenizer leaves nothing of it.
    truncated: whether the text was longer than the model takes, and was cut.
    """

    words: tuple[str, ...]
    tags: "tuple[Classified | None, ...]"
    truncated: bool


def classify(
    model: EncoderOnly, tokenizer: Tokenizer, texts: Sequence[str], *, batch_tokens: int = BATCH_TOKENS
) -> list[Classified]:
    """The label of each text, in their order.

    Raises:
        UserError: where the model does not classify texts, the tokenizer has no bos or eos, or a text cannot be
            encoded.
    """
    labels = _labels(model, "texts")
    encoded = encode_texts(tokenizer, texts, max_len=model.max_len)

    def probabilities(batch: HiddenBatch) -> list[list[float]]:
        return model.classify(batch.hidden, batch.token_mask).softmax(-1).tolist()  # (B, L)

    rows = map_hidden(
        model, [len(row) for row in encoded.rows], encoded.rows.__getitem__, probabilities,
        pad=tokenizer.pad_id, batch_tokens=batch_tokens,
    )  # fmt: skip
    return [_classified(labels, p, cut) for p, cut in zip(rows, encoded.cut, strict=True)]


def tag(
    model: EncoderOnly, tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], *, batch_tokens: int = BATCH_TOKENS
) -> list[Tagged]:
    """The label of each word in each list of words: that of its first piece, as in training.

    Raises:
        UserError: where the model does not label words, the tokenizer has no bos or eos, or a word cannot be encoded.
    """
    labels = _labels(model, "tokens")
    words = encode_words(tokenizer, sentences)
    encoded = frame_rows(tokenizer, [ids.tolist() for ids, _ in words], max_len=model.max_len)
    rows = encoded.rows
    # Of each text, its words' first pieces that the model reads, in the row: bos stands before them.
    heads = [
        [int(first) + 1 if 0 <= first < len(row) - 2 else None for first in firsts]
        for (_, firsts), row in zip(words, rows, strict=True)
    ]

    def probabilities(batch: HiddenBatch) -> list[list[list[float] | None]]:
        p = model.classify(batch.hidden, batch.token_mask).softmax(-1)  # (B, T, L)
        words_of_rows = list[list[list[float] | None]]()
        for slot, number in enumerate(batch.numbers):
            in_order = iter(
                p[slot, torch.tensor([h for h in heads[number] if h is not None], dtype=torch.long)].tolist()
            )
            words_of_rows.append([None if head is None else next(in_order) for head in heads[number]])
        return words_of_rows

    predictions = map_hidden(
        model, [len(row) for row in rows], rows.__getitem__, probabilities,
        pad=tokenizer.pad_id, batch_tokens=batch_tokens,
    )  # fmt: skip
    return [
        Tagged(
            words=tuple(sentence),
            tags=tuple(None if p is None else _classified(labels, p, cut) for p in row),
            truncated=cut,
        )
        for sentence, row, cut in zip(sentences, predictions, encoded.cut, strict=True)
    ]


def _labels(model: EncoderOnly, over: str) -> tuple[str, ...]:
    head = model.spec.classifier
    if head is None:
        raise UserError("the model has no classifier; train one on labelled texts")
    if head.over != over:
        does, function = ("words", "tag") if head.over == "tokens" else ("texts", "classify")
        raise UserError(f"the model gives labels to {does}; use {function}()")
    return head.labels


def _classified(labels: Sequence[str], probabilities: Sequence[float], cut: bool) -> Classified:
    ranked = sorted(zip(labels, probabilities, strict=True), key=lambda pair: -pair[1])
    label, probability = ranked[0]
    return Classified(label=label, probability=probability, scores=dict(ranked), truncated=cut)

"""Predictions for masks in texts: the most likely tokens, or the probabilities of given words.

    p(word) = product over its pieces k of p(piece k | the text, pieces before k, a mask for k and for each after it)

A piece is a token of a word. For a word of n pieces, the mask is expanded to n masks, which are filled from left to
right. The probabilities of all sequences of n pieces sum to 1, so the probability of a word is conditional on its
number of pieces.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tercet.data.rows.batching import BATCH_TOKENS
from tercet.encoding.batches import HiddenBatch, map_hidden, pick_places
from tercet.encoding.masked_text import MaskedText, require_mask_id
from tercet.messages import shorten
from tercet.models import EncoderOnly
from tercet.notebook import MAX_REPR, Summary, Table, View
from tercet.objectives import split_logits, target_logprobs
from tercet.objectives.batch import to_device, to_host
from tercet.tokens import Tokenizer

TOP = 5


@dataclass(frozen=True, kw_only=True, repr=False)
class Candidate(Summary):
    """Candidate for a mask.

    Attributes:
        word: Text of a token, or one of the given words.
        ids: Ids of its pieces.
        probability: Probability of the word at this mask.
        text: Whole text with the word instead of the mask.
    """

    word: str
    ids: tuple[int, ...]
    probability: float
    text: str


@dataclass(frozen=True, kw_only=True, repr=False)
class MaskPredictions(Summary):
    """Predictions for the masks of a text.

    Attributes:
        text: The text with its masks.
        masks: Candidates for each mask in order, most likely first. The other masks are not filled.
        truncated: True if the text exceeds the model's context and was cut.
    """

    text: str
    masks: tuple[tuple[Candidate, ...], ...]
    truncated: bool

    def __repr__(self) -> str:
        words = "; ".join(
            ", ".join(f"{candidate.word} {candidate.probability:.1%}" for candidate in mask[:3]) for mask in self.masks
        )
        return f"MaskPredictions({shorten(f'{self.text!r}: {words}', MAX_REPR)})"

    def view(self) -> View:
        rows = [
            (f"{number}" if place == 0 else "", candidate.word, f"{candidate.probability:.1%}", candidate.text)
            for number, mask in enumerate(self.masks, start=1)
            for place, candidate in enumerate(mask)
        ]
        table = Table(header=("mask", "word", "probability", "text"), rows=rows, left=(1, 3))
        return View((table, "the end of the text was cut off" * self.truncated))


def fill(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    top: int | None = None,
    only: Sequence[str] | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[MaskPredictions]:
    """Return the most likely tokens for each mask, without special tokens and the unknown token.

    A mask is written [MASK], <mask>, or as the tokenizer's mask token.

    Args:
        model: Model with a head for masked tokens.
        tokenizer: Tokenizer of the model.
        texts: Texts with at least one mask each.
        top: Maximum number of candidates (default: 5, or all words of `only`).
        only: Words to choose from (default: all tokens). For a word of several pieces, the mask is expanded.
        batch_tokens: Maximum number of tokens per batch, including padding.

    Raises:
        UserError: If a text has no mask, or one beyond the model's context; if the vocabulary cannot encode a word, or
            the tokenizer has no mask token, bos or eos.
        ValueError: If `top` is below 1, if `only` is empty or a word of it does not fit into the context, or if the
            model has no head for masked tokens.
    """
    if top is not None and top < 1:
        raise ValueError(f"top={top} must be at least 1")
    if only is not None and not only:
        raise ValueError("only=() leaves no candidates; pass some words, or None for the whole vocabulary")
    masked_texts = [MaskedText.read(tokenizer, text, max_len=model.max_len) for text in texts]
    if only is None:
        predictions = _likeliest(model, tokenizer, masked_texts, top or TOP, batch_tokens)
    else:
        predictions = _words(model, tokenizer, masked_texts, list(dict.fromkeys(only)), top, batch_tokens)
    return [
        MaskPredictions(text=text.text, masks=masks, truncated=text.truncated)
        for text, masks in zip(masked_texts, predictions, strict=True)
    ]


Masks = tuple[tuple[Candidate, ...], ...]


def _likeliest(
    model: EncoderOnly, tokenizer: Tokenizer, texts: Sequence[MaskedText], top: int, batch_tokens: int
) -> list[Masks]:
    unknown = [] if tokenizer.unk_id is None else [tokenizer.unk_id]
    excluded = {*tokenizer.special_ids, *unknown, *range(tokenizer.vocab_size, model.vocab_size)}
    forbidden = to_device(torch.tensor(sorted(excluded), dtype=torch.long), model.embedding.weight.device)
    n = min(top, model.vocab_size - len(excluded))

    def best_tokens(batch: HiddenBatch) -> list[tuple[Tensor, Tensor]]:
        """Return the probabilities and the ids, (masks, n) each, of the most likely tokens for each text's masks."""
        places = [(slot, position) for slot, number in enumerate(batch.numbers) for position in texts[number].positions]
        best = [
            logits.softmax(-1).index_fill(1, forbidden, -1.0).topk(n)
            for _, logits in split_logits(model, pick_places(batch.hidden, places))
        ]
        values, ids = (to_host(torch.cat(parts)) for parts in zip(*best, strict=True))
        counts = [len(texts[number].positions) for number in batch.numbers]
        return list(zip(values.split(counts), ids.split(counts), strict=True))

    def candidates(text: MaskedText, number: int, values: list[float], ids: list[int]) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(word=_word(tokenizer, token), ids=(token,), probability=p, text=text.fill_mask(number, [token]))
            for p, token in zip(values, ids, strict=True)
        )

    predictions = map_hidden(
        model, [len(text.row) for text in texts], lambda number: texts[number].row, best_tokens,
        pad=tokenizer.pad_id, batch_tokens=batch_tokens,
    )  # fmt: skip
    return [
        tuple(
            candidates(text, number, *best)
            for number, best in enumerate(zip(values.tolist(), ids.tolist(), strict=True))
        )
        for text, (values, ids) in zip(texts, predictions, strict=True)
    ]


def _words(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[MaskedText],
    words: Sequence[str],
    top: int | None,
    batch_tokens: int,
) -> list[Masks]:
    steps = partial(_spell, mask_id=require_mask_id(tokenizer), max_len=model.max_len)
    spellings = [[_group_by_pieces(text, number, words) for number in range(len(text.positions))] for text in texts]
    # A row scores several words: all of one piece, or those with the same first pieces and the same number of them.
    targets_of_row = dict[tuple[int, ...], set[tuple[int, int]]]()

    for text, masks in zip(texts, spellings, strict=True):
        for number, words_by_pieces in enumerate(masks):
            for pieces, word in words_by_pieces.items():
                if text.positions[number] + len(pieces) > model.max_len - 1:
                    raise ValueError(
                        f"{word!r} of {len(pieces)} tokens does not fit into max_len={model.max_len} "
                        f"after {text.positions[number]} tokens; shorten the text before it"
                    )
                for row, target in steps(text, number, pieces):
                    targets_of_row.setdefault(row, set()).add(target)
    rows = list(targets_of_row)
    row_targets = [sorted(targets) for targets in targets_of_row.values()]

    def logprobs(batch: HiddenBatch) -> tuple[Tensor, ...]:
        """Return ln p of the targets of each row."""
        targets = [(slot, *target) for slot, number in enumerate(batch.numbers) for target in row_targets[number]]
        states = pick_places(batch.hidden, [(slot, position) for slot, position, _ in targets])
        target_scores = target_logprobs(model, states, torch.tensor([token for _, _, token in targets]))
        return to_host(target_scores).split([len(row_targets[number]) for number in batch.numbers])

    answers = map_hidden(
        model, [len(row) for row in rows], rows.__getitem__, logprobs, pad=tokenizer.pad_id, batch_tokens=batch_tokens
    )
    logprobs_of_row = {
        row: dict(zip(targets, answer.tolist(), strict=True))
        for row, targets, answer in zip(rows, row_targets, answers, strict=True)
    }

    def candidates(text: MaskedText, number: int, words_by_pieces: dict[tuple[int, ...], str]) -> tuple[Candidate, ...]:
        results = list[Candidate]()
        for pieces, word in words_by_pieces.items():
            logprob = math.fsum(logprobs_of_row[row][target] for row, target in steps(text, number, pieces))
            filled_text = text.fill_mask(number, pieces)
            results.append(Candidate(word=word, ids=pieces, probability=math.exp(logprob), text=filled_text))
        return tuple(sorted(results, key=lambda candidate: -candidate.probability)[:top])

    return [
        tuple(candidates(text, number, words_by_pieces) for number, words_by_pieces in enumerate(masks))
        for text, masks in zip(texts, spellings, strict=True)
    ]


def _spell(
    text: MaskedText, number: int, pieces: tuple[int, ...], *, mask_id: int, max_len: int
) -> list[tuple[tuple[int, ...], tuple[int, int]]]:
    """Return, for each piece of a word, the row that predicts it, and its position and token id."""
    position = text.positions[number]
    rows = [
        [*text.row[:position], *pieces[:k], *[mask_id] * (len(pieces) - k), *text.row[position + 1 :]]
        for k in range(len(pieces))
    ]
    # A word of several pieces may exceed the context. The row is then truncated before eos, like a text.
    fitting = [row if len(row) <= max_len else [*row[: max_len - 1], row[-1]] for row in rows]
    return [(tuple(row), (position + k, pieces[k])) for k, row in enumerate(fitting)]


def _group_by_pieces(text: MaskedText, number: int, words: Sequence[str]) -> dict[tuple[int, ...], str]:
    """Return words by their pieces. If several words have the same pieces, such as Cat and cat, the first is kept."""
    spellings = dict[tuple[int, ...], str]()
    for word in words:
        spellings.setdefault(text.pieces(number, word), word)
    return spellings


def _word(tokenizer: Tokenizer, token: int) -> str:
    name = tokenizer.tokens([token])[0]
    return name.strip() or name

"""What may stand where a text has a mask: the likeliest tokens, or how likely given words are.

    p(word) = product over its pieces k of p(piece k | the text, pieces before k, a mask for k and for each after it)

A word of n pieces is read with n masks in its place, filled from left to right, so words of one length share one sum
of 1; a longer word's probability is that of the word and of its length being right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tercet.data.batching import BATCH_TOKENS
from tercet.encoding.batches import HiddenBatch, map_hidden
from tercet.encoding.masks import Masked, mask_of
from tercet.models import EncoderOnly
from tercet.objectives import split_logits, target_logprobs
from tercet.tokens import Tokenizer

TOP = 5


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What may stand in a mask's place.

    Attributes:
        word: a token, or the word asked for.
        ids: of its pieces.
        text: the whole text with it in its place.
    """

    word: str
    ids: tuple[int, ...]
    probability: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Attributes:
    text: as it was given.
    masks: for each mask, in their order, what may stand there, likeliest first, while the others stay masks.
    truncated: whether the text was longer than the model takes, and was cut.
    """

    text: str
    masks: tuple[tuple[Candidate, ...], ...]
    truncated: bool


def fill(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    top: int | None = None,
    only: Sequence[str] | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Filled]:
    """For each text and each mask in it the likeliest tokens; special tokens and the unknown one are none of them.

    A mask is written [MASK], <mask>, or as the tokenizer calls it.

    Args:
        top: so many at most; 5 by default, or all the words of `only`.
        only: these words in place of the vocabulary; a word of several pieces gets as many masks.
        batch_tokens: the most tokens of a batch, padding included.

    Raises:
        UserError: where a text has no mask, or one that stands behind what the model takes; where a word is not in the
            vocabulary, or the tokenizer has no mask token, bos or eos.
        ValueError: for `top` below 1, or no word in `only`.
    """
    if top is not None and top < 1:
        raise ValueError(f"top={top} must be at least 1")
    if only is not None and not only:
        raise ValueError("only=() leaves nothing to choose from; give some words, or None for the whole vocabulary")
    masked = [Masked.read(tokenizer, text, max_len=model.max_len) for text in texts]
    if only is None:
        found = _likeliest(model, tokenizer, masked, top or TOP, batch_tokens)
    else:
        found = _words(model, tokenizer, masked, list(dict.fromkeys(only)), top, batch_tokens)
    return [
        Filled(text=one.text, masks=masks, truncated=one.truncated) for one, masks in zip(masked, found, strict=True)
    ]


Masks = tuple[tuple[Candidate, ...], ...]


def _likeliest(
    model: EncoderOnly, tokenizer: Tokenizer, texts: Sequence[Masked], top: int, batch_tokens: int
) -> list[Masks]:
    unknown = [] if tokenizer.unk_id is None else [tokenizer.unk_id]
    never = {*tokenizer.special_ids, *unknown, *range(tokenizer.vocab_size, model.vocab_size)}
    forbidden = torch.tensor(sorted(never), dtype=torch.long)
    n = min(top, model.vocab_size - len(never))

    def best(batch: HiddenBatch) -> list[list[tuple[list[float], list[int]]]]:
        which = [(slot, place) for slot, number in enumerate(batch.numbers) for place in texts[number].places]
        slots, places = torch.tensor(which, device=batch.hidden.device).unbind(1)
        found = list[tuple[list[float], list[int]]]()
        for _, logits in split_logits(model, batch.hidden[slots, places]):
            p = logits.softmax(-1)  # (n, V)
            values, ids = p.index_fill(1, forbidden.to(p.device), -1.0).topk(n)
            found += zip(values.tolist(), ids.tolist(), strict=True)
        one = iter(found)
        return [[next(one) for _ in texts[number].places] for number in batch.numbers]

    def candidates(text: Masked, number: int, values: list[float], ids: list[int]) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(word=_word(tokenizer, token), ids=(token,), probability=p, text=text.filled(number, [token]))
            for p, token in zip(values, ids, strict=True)
        )

    every = map_hidden(
        model, [len(text.row) for text in texts], lambda number: texts[number].row, best,
        pad=tokenizer.pad_id, batch_tokens=batch_tokens,
    )  # fmt: skip
    return [
        tuple(candidates(text, number, *one) for number, one in enumerate(masks))
        for text, masks in zip(texts, every, strict=True)
    ]


def _words(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[Masked],
    words: Sequence[str],
    top: int | None,
    batch_tokens: int,
) -> list[Masks]:
    mask_id = mask_of(tokenizer)
    spelled = [[_by_pieces(text, number, words) for number in range(len(text.places))] for text in texts]
    # Words of one piece are read off the same row, and so are words that begin alike.
    asked = dict[tuple[int, ...], set[tuple[int, int]]]()

    def steps(text: Masked, number: int, pieces: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, int]]]:
        """For each piece the row that it is read off, and the place and the token there."""
        place = text.places[number]
        rows = [
            [*text.row[:place], *pieces[:k], *[mask_id] * (len(pieces) - k), *text.row[place + 1 :]]
            for k in range(len(pieces))
        ]
        # A word of several pieces may push the end out: it is cut, as that of a text is.
        fitting = [row if len(row) <= model.max_len else [*row[: model.max_len - 1], row[-1]] for row in rows]
        return [(tuple(row), (place + k, pieces[k])) for k, row in enumerate(fitting)]

    for text, masks in zip(texts, spelled, strict=True):
        for number, by_pieces in enumerate(masks):
            for pieces, word in by_pieces.items():
                if text.places[number] + len(pieces) > model.max_len - 1:
                    raise ValueError(
                        f"{word!r} of {len(pieces)} tokens does not fit into max_len={model.max_len} "
                        f"after {text.places[number]} tokens; shorten the text before it"
                    )
                for row, target in steps(text, number, pieces):
                    asked.setdefault(row, set()).add(target)
    rows = list(asked)
    wanted = [sorted(targets) for targets in asked.values()]

    def logprobs(batch: HiddenBatch) -> list[dict[tuple[int, int], float]]:
        which = [(slot, *target) for slot, number in enumerate(batch.numbers) for target in wanted[number]]
        slots, places, targets = torch.tensor(which, device=batch.hidden.device).unbind(1)
        found = iter(target_logprobs(model, batch.hidden[slots, places], targets).tolist())
        return [{target: next(found) for target in wanted[number]} for number in batch.numbers]

    answers = map_hidden(
        model, [len(row) for row in rows], rows.__getitem__, logprobs, pad=tokenizer.pad_id, batch_tokens=batch_tokens
    )
    known = dict(zip(rows, answers, strict=True))

    def candidates(text: Masked, number: int, by_pieces: dict[tuple[int, ...], str]) -> tuple[Candidate, ...]:
        every = list[Candidate]()
        for pieces, word in by_pieces.items():
            logprob = math.fsum(known[row][target] for row, target in steps(text, number, pieces))
            filled = text.filled(number, pieces)
            every.append(Candidate(word=word, ids=pieces, probability=math.exp(logprob), text=filled))
        return tuple(sorted(every, key=lambda one: -one.probability)[:top])

    return [
        tuple(candidates(text, number, by_pieces) for number, by_pieces in enumerate(masks))
        for text, masks in zip(texts, spelled, strict=True)
    ]


def _by_pieces(text: Masked, number: int, words: Sequence[str]) -> dict[tuple[int, ...], str]:
    """Each word by its pieces: words that the tokenizer spells alike, as Cat and cat, are one."""
    found = dict[tuple[int, ...], str]()
    for word in words:
        found.setdefault(text.pieces(number, word), word)
    return found


def _word(tokenizer: Tokenizer, token: int) -> str:
    whole = tokenizer.tokens([token])[0]
    return whole.strip() or whole

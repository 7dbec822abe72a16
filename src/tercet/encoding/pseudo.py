"""How likely a text is to a model that fills masks: each token in turn is hidden, and predicted from all the others.

    pseudo-log-likelihood = sum over t of ln p(token t | all tokens but t)             Salazar et al. 2020

A token in a long word is easily told from the rest of the word, so that rare words look likely. `within_word` hides the
rest of the word to its right too (Kauf and Ivanova 2023; `within_word_l2r` in minicons).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tercet.data.rows.batching import BATCH_TOKENS
from tercet.encoding.batches import EncodedTexts, HiddenBatch, encode_texts, map_hidden, pick_places
from tercet.encoding.masked_text import require_mask_id
from tercet.models import EncoderOnly
from tercet.objectives import target_logprobs
from tercet.objectives.batch import to_host
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class PseudoScore:
    """Attributes:
    logprob: the natural pseudo-log-likelihood.
    tokens: those scored, one pass each; bos and eos are not.
    truncated: whether the text was longer than the model takes, and was cut.
    """

    logprob: float
    tokens: int
    truncated: bool

    @property
    def nats_per_token(self) -> float:
        """0 where there is no token."""
        return -self.logprob / self.tokens if self.tokens else 0.0


def pseudo_logprobs(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    within_word: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> list[np.ndarray]:
    """Of each text ln p of its tokens (N_i,), each predicted with itself hidden; bos and eos are never scored.

    Args:
        within_word: with a token, those to its right in the same word are hidden too.
        batch_tokens: the most tokens of a batch, padding included.

    Raises:
        UserError: where the tokenizer has no mask token, bos or eos, or a text cannot be encoded.
    """
    encoded_texts = encode_texts(tokenizer, texts, max_len=model.max_len)
    return _logprobs(model, tokenizer, encoded_texts, within_word=within_word, batch_tokens=batch_tokens)


def pseudo_scores(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    within_word: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> list[PseudoScore]:
    """The sum of each text's `pseudo_logprobs`; arguments as there."""
    encoded_texts = encode_texts(tokenizer, texts, max_len=model.max_len)
    scores = _logprobs(model, tokenizer, encoded_texts, within_word=within_word, batch_tokens=batch_tokens)
    return [
        PseudoScore(logprob=math.fsum(logprobs.tolist()), tokens=len(logprobs), truncated=cut)
        for logprobs, cut in zip(scores, encoded_texts.cut, strict=True)
    ]


def _logprobs(
    model: EncoderOnly, tokenizer: Tokenizer, encoded_texts: EncodedTexts, *, within_word: bool, batch_tokens: int
) -> list[np.ndarray]:
    mask_id = require_mask_id(tokenizer)
    rows = [np.array(row) for row in encoded_texts.rows]
    ends = [_hidden_until(row, tokenizer, within_word) for row in rows]
    # One pass for each token of each text: too many to write down before they are read.
    passes = [(number, position) for number, row in enumerate(rows) for position in range(1, len(row) - 1)]

    def row(index: int) -> list[int]:
        number, position = passes[index]
        masked_row = rows[number].copy()
        masked_row[position : ends[number][position]] = mask_id
        return masked_row.tolist()

    def logprobs(batch: HiddenBatch) -> tuple[Tensor, ...]:
        batch_passes = [passes[index] for index in batch.numbers]
        states = pick_places(
            batch.hidden, [(slot, position) for slot, (_, position) in enumerate(batch_passes)]
        )  # (B, D)
        targets = torch.tensor([int(rows[number][position]) for number, position in batch_passes])
        return to_host(target_logprobs(model, states, targets)).split(1)

    lengths = [len(rows[number]) for number, _ in passes]
    flat = map_hidden(model, lengths, row, logprobs, pad=tokenizer.pad_id, batch_tokens=batch_tokens)
    parts = np.split(
        torch.cat([torch.zeros(0), *flat]).double().numpy(), np.cumsum([len(row) - 2 for row in rows])[:-1]
    )
    return parts if rows else []


def _hidden_until(row: np.ndarray, tokenizer: Tokenizer, within_word: bool) -> list[int]:
    """For each position the end of what is hidden with it: the next position, or the end of its word."""
    if not within_word:
        return list(range(1, len(row) + 1))
    starts = [*tokenizer.word_starts(row).tolist()[1:], True]
    ends, end = list[int](), len(row)
    for position in range(len(row) - 1, -1, -1):
        end = position + 1 if starts[position] else end
        ends.append(end)
    return ends[::-1]

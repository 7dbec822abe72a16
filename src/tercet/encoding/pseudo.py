"""Likelihood of a text under a masked language model that predicts each token from all others.

    pseudo-log-likelihood = sum over t of ln p(token t | all tokens but t)             Salazar et al. 2020

A token of a long word is easily predicted from the rest of the word, which makes rare words look likely. `within_word`
therefore also masks the tokens of the same word to its right (Kauf and Ivanova 2023; `within_word_l2r` in minicons).
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
    """Pseudo-log-likelihood of a text.

    Attributes:
        logprob: Pseudo-log-likelihood, natural logarithm.
        tokens: Number of scored tokens, without bos and eos. Each takes one forward pass.
        truncated: True if the text exceeds the model's context and was cut.
    """

    logprob: float
    tokens: int
    truncated: bool

    @property
    def nats_per_token(self) -> float:
        """Negative log-likelihood per token; 0 if there is no token."""
        return -self.logprob / self.tokens if self.tokens else 0.0


def pseudo_logprobs(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    within_word: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> list[np.ndarray]:
    """Return ln p of the tokens (N_i,) of each text, each predicted while it is masked.

    The tokens bos and eos are not scored.

    Args:
        model: Model with a head for masked tokens.
        tokenizer: Tokenizer of the model.
        texts: Texts to score.
        within_word: If True, the tokens to the right in the same word are masked too.
        batch_tokens: Maximum number of tokens per batch, including padding.

    Raises:
        UserError: If the tokenizer has no mask token, bos or eos, or a text cannot be encoded.
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
    """Return the pseudo-log-likelihood of each text, which is the sum of its `pseudo_logprobs`.

    Arguments and errors are those of `pseudo_logprobs`.
    """
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
    # There is one row per token of each text. To save memory, a row is made only when its batch is computed.
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
    """Return, for each position, the end of the tokens to mask: the next position, or the end of the word."""
    if not within_word:
        return list(range(1, len(row) + 1))
    starts = [*tokenizer.word_starts(row).tolist()[1:], True]
    ends, end = list[int](), len(row)
    for position in range(len(row) - 1, -1, -1):
        end = position + 1 if starts[position] else end
        ends.append(end)
    return ends[::-1]

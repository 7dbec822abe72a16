"""Likelihood of a text under a masked language model that predicts each token from all others.

    pseudo-log-likelihood = sum over t of ln p(token t | all tokens but t)             Salazar et al. 2020

A token of a long word is easily predicted from the rest of the word, which makes rare words look likely. `within_word`
therefore also masks the tokens of the same word to its right (Kauf and Ivanova 2023; `within_word_l2r` in minicons).

With `stride`, a text that is longer than the context is read in overlapping windows. Each token is scored once, in the
first window that contains it, so the score is the sum over the newly scored tokens of all windows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tercet.config import UserError
from tercet.data.encode.unknown_text import encode_located
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.encoding.batches import HiddenBatch, frame_rows, map_hidden, pick_places
from tercet.encoding.chunks import OVERLAP_SHARE, SPECIAL
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
        windows: Number of windows in which the text was read; 1 if it was not split.
    """

    logprob: float
    tokens: int
    truncated: bool
    windows: int = 1

    @property
    def nats_per_token(self) -> float:
        """Negative log-likelihood per token; 0 if there is no token."""
        return -self.logprob / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, kw_only=True)
class ScoredWindows:
    """Windows of texts.

    Attributes:
        rows: Ids of each window, from bos to eos.
        first: Position in each row of the first token that no earlier window of the text contains.
        counts: Number of windows of each text.
        cut: True for each text that was truncated.
    """

    rows: list[list[int]]
    first: list[int]
    counts: list[int]
    cut: list[bool]


def default_stride(max_len: int) -> int:
    """Return the distance of windows in tokens that gives the default overlap, an eighth of a window."""
    room = max_len - SPECIAL
    return room - room // OVERLAP_SHARE


def pseudo_logprobs(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    within_word: bool = False,
    stride: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[np.ndarray]:
    """Return ln p of the tokens (N_i,) of each text, each predicted while it is masked.

    The tokens bos and eos are not scored.

    Args:
        model: Model with a head for masked tokens.
        tokenizer: Tokenizer of the model.
        texts: Texts to score.
        within_word: If True, the tokens to the right in the same word are masked too.
        stride: Distance in tokens between the windows of a long text; None to truncate it to the context.
        batch_tokens: Maximum number of tokens per batch, including padding.

    Raises:
        UserError: If the tokenizer has no mask token, bos or eos, a text cannot be encoded, or the stride is not from 1
            to the tokens of a window, which are two fewer than the context.
    """
    windows = cut_windows(tokenizer, texts, max_len=model.max_len, stride=stride)
    return _logprobs(model, tokenizer, windows, within_word=within_word, batch_tokens=batch_tokens)


def pseudo_scores(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    within_word: bool = False,
    stride: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[PseudoScore]:
    """Return the pseudo-log-likelihood of each text, which is the sum of its `pseudo_logprobs`.

    Arguments and errors are those of `pseudo_logprobs`.
    """
    windows = cut_windows(tokenizer, texts, max_len=model.max_len, stride=stride)
    scores = _logprobs(model, tokenizer, windows, within_word=within_word, batch_tokens=batch_tokens)
    return [
        PseudoScore(logprob=math.fsum(logprobs.tolist()), tokens=len(logprobs), truncated=cut, windows=count)
        for logprobs, cut, count in zip(scores, windows.cut, windows.counts, strict=True)
    ]


def cut_windows(tokenizer: Tokenizer, texts: Sequence[str], *, max_len: int, stride: int | None) -> ScoredWindows:
    """Encode texts, and cut each into windows of `max_len` tokens, including bos and eos; errors as `pseudo_logprobs`.

    Args:
        stride: Distance between windows in tokens; None for only the first window of each text.
    """
    room = max_len - SPECIAL
    if stride is not None and not 1 <= stride <= room:
        raise UserError(f"a stride of {stride:,} tokens: windows of {max_len:,} tokens are 1 to {room:,} tokens apart")
    all_ids = [ids.tolist() for ids in encode_located(tokenizer, texts)]
    starts = [range(0, 1 if stride is None else max(1, len(ids) - room + stride), stride or 1) for ids in all_ids]
    framed = frame_rows(
        tokenizer,
        [ids[start : start + room] for ids, places in zip(all_ids, starts, strict=True) for start in places],
        max_len=max_len,
    )
    return ScoredWindows(
        rows=framed.rows,
        first=[1 if start == 0 else 1 + room - places.step for places in starts for start in places],
        counts=[len(places) for places in starts],
        cut=[stride is None and len(ids) > room for ids in all_ids],
    )


def _logprobs(
    model: EncoderOnly, tokenizer: Tokenizer, windows: ScoredWindows, *, within_word: bool, batch_tokens: int
) -> list[np.ndarray]:
    mask_id = require_mask_id(tokenizer)
    rows = [np.array(row) for row in windows.rows]
    ends = [_hidden_until(row, tokenizer, within_word) for row in rows]
    # There is one row per token of each text. To save memory, a row is made only when its batch is computed.
    passes = [
        (number, position)
        for number, (row, first) in enumerate(zip(rows, windows.first, strict=True))
        for position in range(first, len(row) - 1)
    ]

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
    scored = np.cumsum([0, *(len(row) - 1 - first for row, first in zip(rows, windows.first, strict=True))])
    text_ends = scored[np.cumsum(windows.counts, dtype=np.int64)]  # (N,) number of tokens up to the end of each text
    parts = np.split(torch.cat([torch.zeros(0), *flat]).double().numpy(), text_ends[:-1])
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

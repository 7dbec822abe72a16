"""Mask tokens for masked language modeling, with static shapes.

    n = floor(rate · candidates + u)          80 % of n become the mask token, 10 % a random token, 10 % are unchanged

u is a random number in [0, 1), so n is rate · candidates on average. Devlin et al. (2018). Whole words: Google's BERT,
2019. Spans of whole words: Joshi et al. (2020), SpanBERT. There a span has at most 10 words; here it ends when n tokens
of the row are masked.

There are three differences from most implementations. n is an exact share of each row, up to rounding, instead of a
draw per token, so that N = B · ceil(rate · T) positions always suffice. The three replacements are exact shares of a
row too, up to rounding. Random tokens are drawn from the whole vocabulary except its special tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tercet.objectives.loss import IGNORE_INDEX
from tercet.objectives.specs import Masking

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class MaskedRows:
    """Masked rows and their targets.

    Attributes:
        inputs: (B, T) Tokens, some of them masked.
        positions: (N,) Positions to predict, counted through all rows; 0 for unused entries.
        targets: (N,) Original tokens at these positions, or IGNORE_INDEX for unused entries.
    """

    inputs: Array
    positions: Array
    targets: Array


def mask_rows(
    tokens: Array,
    candidates: Array,
    *,
    masking: Masking,
    generator: np.random.Generator,
    mask_id: int,
    random_ids: Array,
    word_starts: Array | None = None,
) -> MaskedRows:
    """Mask some tokens of the rows (B, T).

    Each row draws the same number of values from the generator, so rows masked in two calls are masked as in one.

    Args:
        tokens: (B, T) Token ids.
        candidates: (B, T) bool, True at tokens that may be masked.
        masking: Share of tokens to mask, and how to mask them.
        generator: Source of randomness.
        mask_id: Id of the mask token.
        random_ids: Ids that random tokens are drawn from.
        word_starts: (B, T) bool, True at the first token of a word. Required if whole words or spans are masked.

    Raises:
        ValueError: If random tokens are needed and `random_ids` is empty, or if `word_starts` is missing.
    """
    n_rows, length = tokens.shape
    n_max = masking.max_predictions(length)
    if masking.random and not len(random_ids):
        raise ValueError("random_ids is empty; pass some ids, or set random=0")
    draws = generator.random((n_rows, 2 + 4 * length))
    rounding, phase = draws[:, 0], draws[:, 1]
    order_draws, outcome_draws, id_draws, length_draws = draws[:, 2:].reshape(n_rows, 4, length).swapaxes(0, 1)
    n_selected = np.floor(masking.rate * candidates.sum(1) + rounding).astype(np.int64)  # (B,)
    n_selected = np.minimum(n_selected, np.minimum(candidates.sum(1), n_max))
    if masking.unit == "tokens":
        is_selected = _choose_tokens(candidates, n_selected, order_draws)
    else:
        if word_starts is None:
            raise ValueError(f"unit={masking.unit} requires word_starts")
        lengths = np.ones_like(tokens, np.int64) if masking.unit == "words" else _geometric(length_draws, masking.span)
        is_selected = _choose_words(_words(candidates, word_starts), candidates, n_selected, order_draws, lengths)
    columns = np.argsort(~is_selected, axis=1, kind="stable")[:, :n_max]  # (B, K) selected columns first, in row order
    count = is_selected.sum(1)[:, None]
    is_used = np.arange(n_max) < count
    # Selected tokens in random order, at even steps between 0 and 1: exact shares without a preferred position.
    rank = np.where(is_used, outcome_draws[:, :n_max], 2.0).argsort(1).argsort(1)
    quantile = (rank + phase[:, None]) / np.maximum(count, 1)
    is_masked = is_used & (quantile < masking.masked)
    is_random = is_used & ~is_masked & (quantile < masking.masked + masking.random)
    positions = np.where(is_used, np.arange(n_rows)[:, None] * length + columns, 0)
    targets = np.where(is_used, np.take_along_axis(tokens, columns, axis=1), IGNORE_INDEX)
    inputs = tokens.copy()
    inputs.ravel()[positions[is_masked]] = mask_id
    if is_random.any():
        random_indices = (id_draws[:, :n_max][is_random] * len(random_ids)).astype(np.int64)
        inputs.ravel()[positions[is_random]] = random_ids[random_indices]
    return MaskedRows(inputs=inputs, positions=positions.ravel(), targets=targets.ravel())


def _choose_tokens(candidates: Array, n_selected: Array, draws: Array) -> Array:
    """Return (B, T) bool, True at `n_selected` candidates of each row, those with the smallest draws."""
    order = np.argsort(np.where(candidates, draws, 2.0), axis=1)
    is_selected = np.zeros_like(candidates)
    np.put_along_axis(is_selected, order, np.arange(candidates.shape[1]) < n_selected[:, None], axis=1)
    return is_selected


def _words(candidates: Array, starts: Array) -> Array:
    """Return (B, T) the index of each token's word in its row.

    Tokens that are not candidates are separate words.
    """
    begins = starts | ~candidates
    begins[:, 1:] |= ~candidates[:, :-1]
    begins[:, 0] = True
    return begins.cumsum(1) - 1


def _geometric(uniform: Array, mean: float) -> Array:
    """Return lengths of 1, 2, ... words from a geometric distribution with this mean."""
    if mean == 1:
        return np.ones(uniform.shape, np.int64)
    return 1 + np.floor(np.log1p(-uniform) / np.log1p(-1 / mean)).astype(np.int64)


def _choose_words(words: Array, candidates: Array, share: Array, order: Array, lengths: Array) -> Array:
    """Return (B, T) bool, True at random runs of `lengths` words, up to `share` tokens in each row.

    A word that exceeds the share is not added. A run ends before such a word, before a word that is already selected,
    and before tokens that are not candidates. All rows advance together: each tries the next word of its run, or starts
    the next run.
    """
    n_rows, length = words.shape
    rows = np.arange(n_rows)
    sizes = np.zeros((n_rows, length + 1), np.int64)  # the last column is not a word: a run ends at the end of the row
    np.add.at(sizes, (rows[:, None], words), candidates)
    queue = np.argsort(np.where(sizes[:, :length] > 0, order, 2.0), axis=1)
    queue = np.concatenate((queue, np.full((n_rows, 1), length)), axis=1)
    n_words = (sizes > 0).sum(1)
    is_taken = np.zeros((n_rows, length + 1), bool)
    share_left = share.copy()
    queue_index, word, run_left = np.zeros((3, n_rows), np.int64)
    while ((share_left > 0) & ((run_left > 0) | (queue_index < n_words))).any():
        runs = run_left > 0
        word = np.minimum(np.where(runs, word + 1, queue[rows, queue_index]), length)
        size = sizes[rows, word]
        does_fit = (size > 0) & (size <= share_left) & ~is_taken[rows, word]
        is_taken[rows, word] |= does_fit
        share_left -= np.where(does_fit, size, 0)
        queue_index = np.where(runs, queue_index, np.minimum(queue_index + 1, n_words))
        run_left = np.where(does_fit, np.where(runs, run_left, lengths[rows, np.minimum(word, length - 1)]) - 1, 0)
    return np.take_along_axis(is_taken, words, axis=1) & candidates

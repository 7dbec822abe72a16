"""Which tokens are hidden, and by what: the rows of a masked language model, with static shapes.

    n = floor(rate · candidates + u)          of those 80 % become the mask token, 10 % another token, 10 % stay

Devlin et al. (2018). Whole words: Google's BERT, 2019; spans of whole words: Joshi et al. (2020), SpanBERT, whose
lengths are cut at 10 where ours end at the row's share. Three numbers differ from most implementations: n is a row's
exact share and not a draw for each token, so N = B · ceil(rate · T) positions always suffice; the three fates too are
exact shares of a row, to rounding; and a random token comes from the whole vocabulary, but never from its special ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tercet.objectives.loss import IGNORE_INDEX
from tercet.objectives.specs import Masking

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class MaskedRows:
    """Attributes:
    inputs: (B, T) the tokens, some of them hidden.
    positions: (N,) of the tokens to predict, counted through all rows; 0 where a row needs fewer than its share of N.
    targets: (N,) the tokens that stood there, or IGNORE_INDEX for a position that is not used.
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
    """Rows (B, T) with some of their tokens hidden.

    Every row takes as many numbers from the generator, so rows masked in two calls are hidden as in one.

    Args:
        candidates: (B, T) bool, the tokens that may be hidden.
        random_ids: from which a random token is drawn.
        word_starts: (B, T) bool, True where a token begins a word; for words and spans.
    """
    n_rows, length = tokens.shape
    n_max = masking.max_predictions(length)
    if masking.random and not len(random_ids):
        raise ValueError("there is no token to draw from: give random_ids, or set random=0")
    draws = generator.random((n_rows, 2 + 4 * length))
    rounding, phase = draws[:, 0], draws[:, 1]
    order_draws, outcome_draws, id_draws, length_draws = draws[:, 2:].reshape(n_rows, 4, length).swapaxes(0, 1)
    n_selected = np.floor(masking.rate * candidates.sum(1) + rounding).astype(np.int64)  # (B,)
    n_selected = np.minimum(n_selected, np.minimum(candidates.sum(1), n_max))
    if masking.unit == "tokens":
        order_of_candidates = np.argsort(np.where(candidates, order_draws, 2.0), axis=1)
        is_selected = np.zeros_like(candidates)
        np.put_along_axis(is_selected, order_of_candidates, np.arange(length) < n_selected[:, None], axis=1)
    else:
        if word_starts is None:
            raise ValueError(f"unit={masking.unit} needs word_starts: where words begin")
        words = _words(candidates, word_starts)
        lengths = (
            np.ones((n_rows, length), np.int64) if masking.unit == "words" else _geometric(length_draws, masking.span)
        )
        is_selected = _choose_words(words, candidates, n_selected, order_draws, lengths)
    columns = np.argsort(~is_selected, axis=1, kind="stable")[:, :n_max]  # (B, K) the chosen first, in the row's order
    count = is_selected.sum(1)[:, None]
    is_used = np.arange(n_max) < count
    # The chosen in random order, at even steps between 0 and 1: exact shares, and no position preferred.
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


def _words(candidates: Array, starts: Array) -> Array:
    """(B, T) the number of each token's word in its row; tokens that are no candidates stand apart."""
    begins = starts | ~candidates
    begins[:, 1:] |= ~candidates[:, :-1]
    begins[:, 0] = True
    return begins.cumsum(1) - 1


def _geometric(uniform: Array, mean: float) -> Array:
    """Lengths of 1, 2, ... words, each longer with the same chance."""
    if mean == 1:
        return np.ones(uniform.shape, np.int64)
    return 1 + np.floor(np.log1p(-uniform) / np.log1p(-1 / mean)).astype(np.int64)


def _choose_words(words: Array, candidates: Array, share: Array, order: Array, lengths: Array) -> Array:
    """(B, T) the tokens of words chosen in random order, `lengths` words on end, up to each row's share.

    A word that no longer fits is not begun; a run ends before it, as before a word chosen already and at what is no
    candidate. All rows take a step together: they try the next word of their run, or begin the next run.
    """
    n_rows, length = words.shape
    rows = np.arange(n_rows)
    sizes = np.zeros((n_rows, length + 1), np.int64)  # the last column is no word: where a run meets the row's end
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

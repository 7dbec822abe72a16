"""Baselines of language models: unigram, bigram and n-gram counts. `data.summary.compression` has two compressors.

    unigram:  p(w) = (c(w) + 1) / (N + V)                                        add-one smoothing
    bigram:   p(w | v) = (c(v w) + t(v) p(w)) / (c(v) + t(v))                    Witten and Bell (1991), method C
    n-gram:   p(w | u v) = (c(u v w) + t(u v) p(w | v)) / (c(u v) + t(u v))      and so on for longer contexts

c counts in the N training tokens, V is the size of the vocabulary, and t(v) is the number of different tokens after v.
The more there are, the likelier is a new one, and the larger is the weight of the unigram. If no token follows v in the
training text, p(w | v) is p(w).

The targets are those of the model: each token of the validation text except the first. If the model reads documents
separately, the first token of each document is not a target, and pairs that span two documents are not counted.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from tercet.data.shards.sharded_array import TokenArray
from tercet.evaluate.scores import LanguageScores

BLOCK = 1 << 22  # targets per block; limits the memory, apart from that of the distinct pairs


def unigram(
    train: TokenArray,
    validation: np.ndarray,
    *,
    vocab_size: int,
    n_bytes: int,
    special_ids: frozenset[int] = frozenset(),
    document_starts: np.ndarray | None = None,
) -> LanguageScores:
    """Return the scores of the unigram model of `train` (N,) on `validation`, with the targets of `language.score`.

    Args:
        train: Training tokens.
        validation: Tokens to score.
        vocab_size: Number of ids.
        n_bytes: UTF-8 bytes of the text of the targets.
        special_ids: Ids without text; excluded from the bits per byte.
        document_starts: Document starts in `validation`, if the model reads documents separately.

    Raises:
        ValueError: If there are no targets.
    """
    p = _unigram_probabilities(train, vocab_size)
    targets = (_sums(p[w], w, special_ids) for _, w in _pairs(validation, document_starts))
    return _scores(targets, n_bytes, context=0)


def bigram(
    train: TokenArray,
    validation: np.ndarray,
    *,
    vocab_size: int,
    n_bytes: int,
    special_ids: frozenset[int] = frozenset(),
    train_document_starts: np.ndarray | None = None,
    document_starts: np.ndarray | None = None,
) -> LanguageScores:
    """Return the scores of the bigram model of `train` (N,) on `validation`, with the targets of `language.score`.

    Args:
        train, validation, vocab_size, n_bytes, special_ids: As in `unigram`.
        train_document_starts, document_starts: Document starts in `train` and `validation`, if the model reads
            documents separately; no pair then spans two documents.

    Raises:
        ValueError: If there are no targets.
    """
    p = _unigram_probabilities(train, vocab_size)
    pairs, pair_counts = _count_pairs(train, vocab_size, train_document_starts)
    first_ids = pairs // vocab_size
    count = np.bincount(first_ids, weights=pair_counts, minlength=vocab_size)  # (V,) c(v), as the first of a pair
    kinds = np.bincount(first_ids, minlength=vocab_size)  # (V,) t(v)

    def probabilities(v: np.ndarray, w: np.ndarray) -> np.ndarray:
        counts = _look_up(pairs, pair_counts, v * vocab_size + w)
        is_unseen = count[v] == 0
        interpolated = (counts + kinds[v] * p[w]) / np.where(is_unseen, 1, count[v] + kinds[v])
        return np.where(is_unseen, p[w], interpolated)

    targets = (_sums(probabilities(v, w), w, special_ids) for v, w in _pairs(validation, document_starts))
    return _scores(targets, n_bytes, context=1)


def ngram_losses(train: np.ndarray, validation: np.ndarray, *, vocab_size: int, order: int) -> list[float]:
    """Return the losses of n-gram models with n from 1 to `order`, in nats per target.

    The targets are all tokens of `validation` except the first. Borders of documents have no effect. For each n, the
    memory is that of some arrays of the length of `train`.

    Args:
        train: (N,) training tokens.
        validation: Tokens to score, at least two.
        vocab_size: Number of ids.
        order: Largest n.
    """
    p = _unigram_probabilities(train, vocab_size)[validation[1:]]
    losses = [float(-np.log(p).mean())]
    contexts, held_out = train.astype(np.int64), validation.astype(np.int64)  # number of the (n - 1)-gram at each place
    for n in range(2, order + 1):
        if len(train) < n or len(validation) < n:
            break
        followed, seen = contexts[:-1], held_out[:-1]  # seen: -1 for contexts that are not in the training text
        pairs, numbers, counts = np.unique(
            followed * vocab_size + train[n - 1 :], return_inverse=True, return_counts=True
        )
        count = np.bincount(followed)  # c of each context
        kinds = np.bincount(pairs // vocab_size)  # t of each context
        queries = seen * vocab_size + validation[n - 1 :].astype(np.int64)
        is_known = (seen >= 0) & (seen < len(count))
        is_known[is_known] = count[seen[is_known]] > 0
        c, t = (np.where(is_known, table[np.where(is_known, seen, 0)], 0) for table in (count, kinds))
        found = _look_up(pairs, counts, queries)
        later = p[n - 2 :]  # targets with a context of n - 1 tokens
        later[:] = np.where(is_known, (found + t * later) / np.maximum(1, c + t), later)
        losses.append(float(-np.log(p).mean()))
        places = np.minimum(np.searchsorted(pairs, queries), len(pairs) - 1)
        contexts, held_out = numbers, np.where((pairs[places] == queries) & (seen >= 0), places, -1)
    return losses


def _unigram_probabilities(train: TokenArray, vocab_size: int) -> np.ndarray:
    counts = np.ones(vocab_size, dtype=np.int64)
    for start in range(0, len(train), BLOCK):
        counts += np.bincount(train[start : start + BLOCK], minlength=vocab_size)
    return counts / counts.sum()


def _count_pairs(ids: TokenArray, vocab_size: int, document_starts: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct pairs of adjacent tokens as sorted numbers v · V + w, and their counts."""
    pairs, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for v, w in _pairs(ids, document_starts):
        new, new_counts = np.unique(v * vocab_size + w, return_counts=True)
        pairs, place = np.unique(np.concatenate((pairs, new)), return_inverse=True)
        counts = np.bincount(place, weights=np.concatenate((counts, new_counts))).astype(np.int64)
    return pairs, counts


def _look_up(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return the value of each query, or 0 if it is not among the sorted keys."""
    if not len(keys):
        return np.zeros(len(queries))
    place = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[place] == queries, values[place], 0)


def _pairs(ids: TokenArray, document_starts: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of pairs of adjacent tokens, as an array of first and one of second tokens.

    With document starts, pairs that span two documents are omitted.
    """
    for start in range(0, len(ids) - 1, BLOCK):
        block = ids[start : start + BLOCK + 1].astype(np.int64)
        v, w = block[:-1], block[1:]
        if document_starts is not None:
            is_inside = np.ones(len(w), dtype=bool)
            borders = document_starts - start - 1
            is_inside[borders[(borders >= 0) & (borders < len(w))]] = False
            v, w = v[is_inside], w[is_inside]
        yield v, w


def _sums(probabilities: np.ndarray, targets: np.ndarray, special_ids: frozenset[int]) -> tuple[float, float, int]:
    """Return the nats of all targets, the nats of targets that are text, and the number of targets."""
    nats = -np.log(probabilities)
    text = ~np.isin(targets, np.array(sorted(special_ids), dtype=np.int64))
    return float(nats.sum()), float(nats[text].sum()), len(targets)


def _scores(sums: Iterable[tuple[float, float, int]], n_bytes: int, *, context: int) -> LanguageScores:
    nats, text_nats, counts = zip((0.0, 0.0, 0), *sums, strict=True)
    tokens = sum(counts)
    if not tokens:
        raise ValueError("nothing to predict; pass at least 2 tokens of one document")
    return LanguageScores.from_sums(
        nats=sum(nats), text_nats=sum(text_nats), tokens=tokens, n_bytes=n_bytes, context=context, stride=1
    )

"""What a model must beat: counting tokens, counting pairs of tokens, and two compressors.

    unigram:  p(w) = (c(w) + 1) / (N + V)                                        add-one smoothing
    bigram:   p(w | v) = (c(v w) + t(v) p(w)) / (c(v) + t(v))                    Witten and Bell (1991), method C

c counts in the N training tokens, t(v) is how many different tokens follow v there: the more, the likelier a new one,
and the more weight the unigram has. After a v that training never saw, the bigram is the unigram.
"""

import lzma
import zlib
from collections.abc import Iterable

import numpy as np

from tercet.evaluate.scores import LanguageScores

BLOCK = 1 << 22  # ids looked at together: what bounds the memory, beside the distinct pairs themselves


def unigram(
    train: np.ndarray,
    validation: np.ndarray,
    *,
    vocab_size: int,
    n_bytes: int,
    special_ids: frozenset[int] = frozenset(),
) -> LanguageScores:
    """Scores of the unigram model counted on `train` (N,), on the same targets as `score`: `validation[1:]`."""
    p = _unigram_probabilities(train, vocab_size)
    sums = np.zeros(2)
    for targets in _blocks(validation[1:], BLOCK):
        sums += _sums(p[targets], targets, special_ids)
    return _scores(sums, validation, n_bytes, context=0)


def bigram(
    train: np.ndarray,
    validation: np.ndarray,
    *,
    vocab_size: int,
    n_bytes: int,
    special_ids: frozenset[int] = frozenset(),
) -> LanguageScores:
    """Scores of the bigram model counted on `train` (N,), on the same targets as `score`: `validation[1:]`."""
    p = _unigram_probabilities(train, vocab_size)
    pairs, pair_counts = _count_pairs(train, vocab_size)
    before = pairs // vocab_size
    count = np.bincount(before, weights=pair_counts, minlength=vocab_size)  # (V,) c(v), as the first of a pair
    kinds = np.bincount(before, minlength=vocab_size)  # (V,) t(v)
    sums = np.zeros(2)
    for both in _blocks(validation, BLOCK, overlap=1):
        v, w = both[:-1].astype(np.int64), both[1:].astype(np.int64)
        seen = _look_up(pairs, pair_counts, v * vocab_size + w)
        unseen = count[v] == 0
        mixed = (seen + kinds[v] * p[w]) / np.where(unseen, 1, count[v] + kinds[v])
        sums += _sums(np.where(unseen, p[w], mixed), w, special_ids)
    return _scores(sums, validation, n_bytes, context=1)


def compression_bits(texts: Iterable[str]) -> dict[str, float]:
    """Bits per byte that `gzip -9` and `xz -9e` need for the texts one after another, read once, piece by piece."""
    compressors = {
        "gzip -9": zlib.compressobj(9, wbits=31),
        "xz -9e": lzma.LZMACompressor(preset=9 | lzma.PRESET_EXTREME),
    }
    sizes = dict.fromkeys(compressors, 0)
    n_bytes = 0
    for text in texts:
        data = text.encode()
        n_bytes += len(data)
        for name, compressor in compressors.items():
            sizes[name] += len(compressor.compress(data))
    if not n_bytes:
        raise ValueError("no text to compress")
    return {name: 8 * (sizes[name] + len(compressor.flush())) / n_bytes for name, compressor in compressors.items()}


def _unigram_probabilities(train: np.ndarray, vocab_size: int) -> np.ndarray:
    counts = np.ones(vocab_size, dtype=np.int64)
    for block in _blocks(train, BLOCK):
        counts += np.bincount(block, minlength=vocab_size)
    return counts / counts.sum()


def _count_pairs(ids: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of neighbours as sorted numbers v · V + w, and how often each stands there."""
    pairs, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for both in _blocks(ids, BLOCK, overlap=1):
        codes = both[:-1].astype(np.int64) * vocab_size + both[1:]
        new, new_counts = np.unique(codes, return_counts=True)
        pairs, place = np.unique(np.concatenate((pairs, new)), return_inverse=True)
        counts = np.bincount(place, weights=np.concatenate((counts, new_counts))).astype(np.int64)
    return pairs, counts


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each key wanted, 0 where it is not among the sorted keys."""
    if not len(keys):
        return np.zeros(len(wanted))
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def _blocks(ids: np.ndarray, size: int, *, overlap: int = 0) -> Iterable[np.ndarray]:
    """`ids` in pieces of `size`, each with the first `overlap` ids of the next."""
    for start in range(0, len(ids) - overlap, size):
        yield ids[start : start + size + overlap]


def _sums(probabilities: np.ndarray, targets: np.ndarray, special_ids: frozenset[int]) -> np.ndarray:
    """Nats over all targets, and over those that stand for text."""
    nats = -np.log(probabilities)
    text = ~np.isin(targets, np.array(sorted(special_ids), dtype=np.int64))
    return np.array([nats.sum(), nats[text].sum()])


def _scores(sums: np.ndarray, validation: np.ndarray, n_bytes: int, *, context: int) -> LanguageScores:
    tokens = len(validation) - 1
    if tokens < 1:
        raise ValueError(f"{len(validation)} tokens leave nothing to predict; at least 2 are needed")
    return LanguageScores.from_sums(
        nats=float(sums[0]), text_nats=float(sums[1]), tokens=tokens, n_bytes=n_bytes, context=context, stride=1
    )

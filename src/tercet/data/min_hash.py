"""Estimated Jaccard similarity of texts by MinHash, and clusters of similar texts.

    J(A, B) = |A & B| / |A | B|     A, B: the sets of all runs of n characters ("shingles") of two texts

Under a random order of all shingles, the first one of A and the first one of B are equal with probability J (Broder
1997, "On the resemblance and containment of documents"). A signature contains the first shingle under each of `HASHES`
orders. The share of equal values in two signatures estimates J, with a standard error of at most 0.045.

Only candidates are compared: pairs whose signatures are equal in one of several bands of consecutive values
(locality-sensitive hashing, Indyk & Motwani 1998). A pair at the threshold is a candidate with a probability of at
least `RECALL`. Case, punctuation and white space are ignored, as in `text_hashes`.
"""

from collections.abc import Iterator

import numpy as np

from tercet.data.text_hashes import ignore_characters

HASHES = 128  # values per signature; 512 bytes per text
RECALL = 0.98  # minimum probability that a pair at the threshold is compared
BLOCK_SHINGLES = 1 << 17  # shingles hashed together, so that temporary arrays stay in the processor's cache
BLOCK_PAIRS = 1 << 14  # pairs compared together
SMALL_BUCKET = 32  # maximum number of texts in a bucket whose pairs are listed together

_GENERATOR = np.random.Generator(np.random.PCG64(1997))  # a fixed seed: signatures must not depend on the run
_FACTORS = _GENERATOR.integers(0, 1 << 32, HASHES, dtype=np.uint32) | np.uint32(1)
_OFFSETS = _GENERATOR.integers(0, 1 << 32, HASHES, dtype=np.uint32)
_ROW_FACTORS = _GENERATOR.integers(0, 1 << 63, HASHES, dtype=np.uint64) | np.uint64(1)
_SHINGLE_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class MinHash:
    """Signatures of texts that arrive one after another, in pieces."""

    def __init__(self, shingle: int) -> None:
        """Initialize.

        Args:
            shingle: Length of a shingle in characters, or in ids if `add_symbols` is called with ids.
        """
        self._shingle = shingle
        self._pending = np.zeros(0, np.uint32)  # last symbols of the current text, with which later shingles begin
        self._n_texts, self._has_shingle = 0, False
        self._segments, self._texts, self._n_symbols = list[np.ndarray](), list[int](), 0
        self._blocks, self._block_texts = list[np.ndarray](), list[np.ndarray]()

    def add(self, text: str, *, last: bool = True) -> None:
        """Add the next piece of a text; `last` is True if the text ends with it."""
        symbols = _symbols(ignore_characters(text))
        is_empty = last and not (len(symbols) or len(self._pending) or self._has_shingle)
        self.add_symbols(_symbols(text) if is_empty else symbols, last=last)  # text of punctuation only

    def add_symbols(self, symbols: np.ndarray, *, last: bool) -> None:
        """Add symbols (N,) of a text, such as characters or token ids, as `add` does."""
        symbols = np.concatenate([self._pending, symbols.astype(np.uint32)])
        if last and not self._has_shingle and len(symbols) < self._shingle:  # one shingle: the whole text
            symbols = np.append(symbols, np.zeros(self._shingle - len(symbols), np.uint32))
        if len(symbols) >= self._shingle:
            self._segments.append(symbols)
            self._texts.append(self._n_texts)
            self._has_shingle = True
            self._n_symbols += len(symbols)
        self._pending = symbols[max(0, len(symbols) - self._shingle + 1) :]
        if last:
            self._pending, self._has_shingle = symbols[:0], False
            self._n_texts += 1
        if self._n_symbols >= BLOCK_SHINGLES:
            self._hash_segments()

    def signatures(self) -> np.ndarray:
        """Return the signatures of all texts that have ended, (N, HASHES) uint32."""
        self._hash_segments()
        if not self._blocks:
            return np.zeros((0, HASHES), np.uint32)
        texts = np.concatenate(self._block_texts)
        return np.minimum.reduceat(np.concatenate(self._blocks), np.flatnonzero(np.diff(texts, prepend=-1)))

    def _hash_segments(self) -> None:
        """Add the signatures of the segments, of which a text may have several, to `_blocks`."""
        if not self._segments:
            return
        lengths = np.array([len(segment) for segment in self._segments])
        symbols = np.concatenate(self._segments).astype(np.uint64)
        shingles = np.zeros(len(symbols) - self._shingle + 1, np.uint64)
        for place in range(self._shingle):
            shingles *= _SHINGLE_FACTOR
            shingles += symbols[place : place + len(shingles)] + np.uint64(1)
        is_inside = np.ones(len(symbols), bool)  # False for runs that continue in the next segment
        for end in np.cumsum(lengths).tolist():
            is_inside[end - self._shingle + 1 : end] = False
        mixed = _mix(shingles[is_inside[: len(shingles)]])
        firsts = np.append(0, np.cumsum(lengths - self._shingle + 1)[:-1])
        signatures, ordered = np.empty((len(lengths), HASHES), np.uint32), np.empty_like(mixed)
        for number in range(HASHES):
            np.multiply(mixed, _FACTORS[number], out=ordered)
            np.add(ordered, _OFFSETS[number], out=ordered)
            signatures[:, number] = np.minimum.reduceat(ordered, firsts)
        self._blocks.append(signatures)
        self._block_texts.append(np.array(self._texts))
        self._segments, self._texts, self._n_symbols = [], [], 0


def hash_signatures(signatures: np.ndarray) -> np.ndarray:
    """Return a hash of each signature, (N,) uint64. It is equal for texts with the same shingles."""
    return _hash_columns(signatures, 0, signatures.shape[1])


def estimate_similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the estimated Jaccard similarity (N,) of pairs of signatures (N, HASHES)."""
    return np.mean(first == second, axis=-1)


def find_clusters(signatures: np.ndarray, threshold: float, keys: np.ndarray) -> np.ndarray:
    """Return the smallest key in the cluster of each text, (N,) uint64.

    Clusters are the connected components of all pairs with an estimated similarity of at least `threshold`, and of all
    pairs with equal keys. They do not depend on the order of the texts.

    Args:
        signatures: (N, HASHES) uint32.
        threshold: Minimum similarity of a pair.
        keys: (N,) uint64 hash of each text's content, or of a group of texts that must stay together.
    """
    roots = _unite_equal(keys, np.arange(len(keys)))
    hashes = hash_signatures(signatures)
    roots = _unite_equal(hashes, roots)
    _, numbers = np.unique(hashes, return_index=True)  # one text for each distinct signature
    distinct = signatures[numbers]
    for order, starts, sizes in _buckets(distinct, threshold):
        for first, second in _small_pairs(order, starts, sizes):
            is_open = roots[numbers[first]] != roots[numbers[second]]
            first, second = first[is_open], second[is_open]
            is_similar = _are_similar(distinct, first, second, threshold)
            roots = _unite(roots, numbers[first[is_similar]], numbers[second[is_similar]])
        for start, size in _large_buckets(starts, sizes):
            roots = _unite_bucket(distinct, numbers, order[start : start + size], roots, threshold)
    return _smallest_keys(keys, roots)


def unite_equal(keys: np.ndarray, other_keys: np.ndarray) -> np.ndarray:
    """Return the smallest key in the cluster of each item, (N,) uint64.

    Clusters are the connected components of all pairs with equal keys, and of all pairs with equal other keys.

    Args:
        keys, other_keys: (N,) uint64, such as the hash of each text and that of its group.
    """
    return _smallest_keys(keys, _unite_equal(other_keys, _unite_equal(keys, np.arange(len(keys)))))


def find_similar(signatures: np.ndarray, other_signatures: np.ndarray, threshold: float) -> np.ndarray:
    """Return a mask (N,) of the texts that are similar to at least one of the other texts.

    Args:
        signatures, other_signatures: (N, HASHES) and (M, HASHES) uint32.
        threshold: Minimum similarity of a pair.
    """
    found = np.isin(hash_signatures(signatures), hash_signatures(other_signatures))
    others = other_signatures[np.unique(hash_signatures(other_signatures), return_index=True)[1]]
    numbers = np.flatnonzero(~found)  # texts to compare
    together, n = np.concatenate([signatures[numbers], others]), len(numbers)
    is_found = np.zeros(len(together), bool)
    for order, starts, sizes in _buckets(together, threshold):
        for first, second in _small_pairs(order, starts, sizes):
            low, high = np.minimum(first, second), np.maximum(first, second)
            is_open = (low < n) & (high >= n) & ~is_found[low]
            low, high = low[is_open], high[is_open]
            is_found[low[_are_similar(together, low, high, threshold)]] = True
        for start, size in _large_buckets(starts, sizes):
            members = order[start : start + size]
            high = members[members >= n]
            for text in members[(members < n) & ~is_found[members]].tolist():
                is_found[text] = _has_similar(together, text, high, threshold)
    found[numbers] = is_found[:n]
    return found


def _symbols(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _mix(shingles: np.ndarray) -> np.ndarray:
    """Return 32 well-mixed bits of each number, by the finalizer of SplitMix64 (Steele et al. 2014)."""
    mixed = (shingles ^ (shingles >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed >> np.uint64(32)).astype(np.uint32)


def _hash_columns(signatures: np.ndarray, start: int, end: int) -> np.ndarray:
    hashes = np.zeros(len(signatures), np.uint64)
    for column in range(start, end):
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _SHINGLE_FACTOR
        hashes += (signatures[:, column].astype(np.uint64) + np.uint64(1)) * _ROW_FACTORS[column]
    return hashes


def _band_width(threshold: float) -> int:
    """Return the largest width of a band with which a pair at the threshold is a candidate in `RECALL` of the cases."""
    widths = range(HASHES, 1, -1)
    return next((r for r in widths if 1 - (1 - threshold**r) ** (HASHES // r) >= RECALL), 1)


def _buckets(signatures: np.ndarray, threshold: float) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield, for each band, the texts sorted by their bucket, and the start and size of each bucket of several texts.

    The texts of a bucket have equal values in the band.
    """
    width = _band_width(threshold)
    for start in range(0, HASHES - width + 1, width):
        hashes = _hash_columns(signatures, start, start + width)
        order = np.argsort(hashes, kind="stable")
        starts = np.flatnonzero(np.diff(hashes[order], prepend=hashes[order[:1]] + np.uint64(1)))
        sizes = np.diff(starts, append=len(order))
        yield order, starts[sizes > 1], sizes[sizes > 1]


def _small_pairs(order: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield all pairs of texts in the small buckets: first the neighbors in `order`, then texts two apart, and so on.

    A pair that is yielded later may already be in one cluster by then, and need not be compared.
    """
    is_small = sizes <= SMALL_BUCKET
    starts, sizes = starts[is_small], sizes[is_small]
    for distance in range(1, int(sizes.max(initial=1))):
        counts = np.maximum(0, sizes - distance)
        firsts = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        for block in range(0, len(firsts), BLOCK_PAIRS):
            places = firsts[block : block + BLOCK_PAIRS]
            yield order[places], order[places + distance]


def _large_buckets(starts: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    is_large = sizes > SMALL_BUCKET
    yield from zip(starts[is_large].tolist(), sizes[is_large].tolist(), strict=True)


def _are_similar(signatures: np.ndarray, first: np.ndarray, second: np.ndarray, threshold: float) -> np.ndarray:
    return estimate_similarity(signatures[first], signatures[second]) >= threshold


def _has_similar(signatures: np.ndarray, text: int, others: np.ndarray, threshold: float) -> bool:
    for block in range(0, len(others), BLOCK_PAIRS):
        candidates = others[block : block + BLOCK_PAIRS]
        if _are_similar(signatures, np.full(len(candidates), text), candidates, threshold).any():
            return True
    return False


def _unite_bucket(
    signatures: np.ndarray, numbers: np.ndarray, members: np.ndarray, roots: np.ndarray, threshold: float
) -> np.ndarray:
    """Return the roots after a comparison of all pairs of a bucket that are not in the same cluster yet.

    The next text to compare never belongs to the largest cluster in the bucket. If nearly all texts are similar, only
    the few others are therefore compared with all.
    """
    while True:
        clusters, sizes = np.unique(roots[numbers[members]], return_counts=True)
        if len(clusters) < 2:
            return roots
        is_other = roots[numbers[members]] != clusters[sizes.argmax()]
        text = members[is_other][0]
        others = members[roots[numbers[members]] != roots[numbers[text]]]
        similar = [
            candidates[_are_similar(signatures, np.full(len(candidates), text), candidates, threshold)]
            for candidates in np.split(others, range(BLOCK_PAIRS, len(others), BLOCK_PAIRS))
        ]
        matches = np.concatenate(similar)
        roots = _unite(roots, np.full(len(matches), numbers[text]), numbers[matches])
        members = members[members != text]


def _smallest_keys(keys: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """Return the smallest key in the cluster of each item, (N,); `roots` (N,) are the clusters, as in `_unite`."""
    smallest = np.full(len(keys), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(smallest, roots, keys)
    return smallest[roots]


def _unite_equal(values: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """Return the roots after the clusters of items with equal values are united."""
    _, firsts, groups = np.unique(values, return_index=True, return_inverse=True)
    return _unite(roots, np.arange(len(values)), firsts[groups])


def _unite(roots: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the roots after the clusters of the pairs `first`, `second` are united.

    Args:
        roots: (N,) number of the first item in the cluster of each item.
        first, second: (P,) numbers of the items of each pair.
    """
    while True:
        low, high = np.minimum(roots[first], roots[second]), np.maximum(roots[first], roots[second])
        is_open = low != high
        if not is_open.any():
            return roots
        first, second = first[is_open], second[is_open]
        roots = roots.copy()
        np.minimum.at(roots, high[is_open], low[is_open])
        while not np.array_equal(shorter := roots[roots], roots):
            roots = shorter

"""MinHash signatures estimate the Jaccard similarity, and clusters are the components of similar texts."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.data import min_hash
from tercet.data.min_hash import HASHES, MinHash, estimate_similarity, find_clusters, find_similar, hash_signatures
from tercet.data.text_hashes import draw_groups, hash_text

WORDS = ["".join(random.Random(n).choices("abcdefghijklmnopqrstuvwxyz", k=n % 7 + 3)) for n in range(500)]


def signatures_of(texts: list[str], shingle: int = 5) -> np.ndarray:
    hasher = MinHash(shingle)
    for text in texts:
        hasher.add(text)
    return hasher.signatures()


def random_text(draw: random.Random, words: int = 40) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def vary(text: str, draw: random.Random, changes: int) -> str:
    words = text.split()
    for _ in range(changes):
        words[draw.randrange(len(words))] = draw.choice(WORDS)
    return " ".join(words)


def shingles(text: str, size: int) -> set[str]:
    letters = "".join(text.split())
    return {letters[start : start + size] for start in range(max(1, len(letters) - size + 1))}


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_estimate_equals_exact_similarity_within_its_error(size: int) -> None:
    draw = random.Random(size)
    pairs = [(text, vary(text, draw, n % 40)) for n in range(200) for text in [random_text(draw)]]
    exact = np.array(
        [len(shingles(a, size) & shingles(b, size)) / len(shingles(a, size) | shingles(b, size)) for a, b in pairs]
    )
    first, second = (signatures_of([pair[side] for pair in pairs], size) for side in (0, 1))
    errors = estimate_similarity(first, second) - exact
    deviation = np.sqrt(exact * (1 - exact) / HASHES)
    assert np.abs(errors).max() < 0.2
    assert abs(errors.mean()) < 0.01  # no bias
    assert np.sqrt((errors**2).mean()) < 1.2 * np.sqrt((deviation**2).mean()) + 1e-9


def test_a_signature_does_not_depend_on_other_texts_case_or_punctuation(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [random_text(random.Random(n), n % 50) for n in range(80)] + ["", "a", "?!", "Straße"]
    alone = np.concatenate([signatures_of([text]) for text in texts])
    np.testing.assert_array_equal(signatures_of(texts), alone)
    monkeypatch.setattr(min_hash, "BLOCK_SHINGLES", 64)  # many blocks
    np.testing.assert_array_equal(signatures_of(texts), alone)
    np.testing.assert_array_equal(signatures_of(["The CAT, sleeps!"]), signatures_of(["the cat sleeps"]))
    assert not np.array_equal(signatures_of(["?!"]), signatures_of(["!!"]))
    assert signatures_of([]).shape == (0, HASHES)


@given(text=st.text("abc, ", max_size=40), cuts=st.lists(st.integers(0, 40), max_size=5), shingle=st.integers(1, 8))
def test_a_signature_does_not_depend_on_the_pieces(text: str, cuts: list[int], shingle: int) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    hasher = MinHash(shingle)
    hasher.add("another text")
    for number, (start, end) in enumerate(pairwise(places)):
        hasher.add(text[start:end], last=number == len(places) - 2)
    if any(map(str.isalnum, text)):
        np.testing.assert_array_equal(hasher.signatures(), signatures_of(["another text", text], shingle))
    assert len(hasher.signatures()) == 2


def families(seed: int, n_families: int, changes: int) -> tuple[list[str], list[int]]:
    """Return shuffled texts, and the family of each: variants of one text with some other words."""
    draw = random.Random(seed)
    items = list[tuple[str, int]]()
    for family in range(n_families):
        text = random_text(draw)
        items += [(vary(text, draw, changes * (number > 0)), family) for number in range(draw.choice([1, 2, 5, 20]))]
    draw.shuffle(items)
    return [text for text, _ in items], [family for _, family in items]


@pytest.mark.parametrize("small_bucket", [32, 2])  # pairs of all buckets, or one text against all
def test_clusters_are_the_planted_families(small_bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(min_hash, "SMALL_BUCKET", small_bucket)
    monkeypatch.setattr(min_hash, "BLOCK_PAIRS", 7)
    texts, family = families(3, 20, 1)
    signatures = signatures_of(texts)
    clusters = find_clusters(signatures, 0.8, hash_signatures(signatures))
    pairs = {(a, b) for a, b in zip(family, clusters.tolist(), strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) == 20
    assert clusters.tolist() == [
        min(key for key, other in zip(hash_signatures(signatures).tolist(), family, strict=True) if other == number)
        for number in family
    ]


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), threshold=st.sampled_from([0.3, 0.5, 0.8, 1.0]), n_keys=st.sampled_from([3, 10**6]))
@settings(max_examples=8, deadline=None)
def test_clusters_do_not_depend_on_the_order_and_unite_equal_keys(seed: int, threshold: float, n_keys: int) -> None:
    texts, _ = families(seed, 5, 5)
    keys = np.array([hash_text(text) % n_keys for text in texts], dtype=np.uint64)
    signatures = signatures_of(texts)
    clusters = find_clusters(signatures, threshold, keys)
    order = np.random.default_rng(seed).permutation(len(texts))
    np.testing.assert_array_equal(find_clusters(signatures[order], threshold, keys[order]), clusters[order])
    for key in np.unique(keys):
        assert len(np.unique(clusters[keys == key])) == 1
    similarity = estimate_similarity(signatures[:, None], signatures[None])
    assert all(clusters[a] == clusters[b] for a, b in np.argwhere(similarity >= min(1.0, threshold + 0.15)).tolist())
    linked = (similarity >= threshold) | (keys[:, None] == keys[None])
    for _ in range(len(texts).bit_length()):
        linked = (linked.astype(int) @ linked.astype(int)) > 0
    assert all(linked[a, b] for a, b in np.argwhere(clusters[:, None] == clusters[None]).tolist())


@pytest.mark.parametrize("small_bucket", [32, 2])
def test_similar_texts_of_the_other_part_are_found(small_bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(min_hash, "SMALL_BUCKET", small_bucket)
    texts, family = families(5, 20, 1)
    is_validation = np.random.default_rng(5).random(len(texts)) < 0.3
    signatures = signatures_of(texts)
    found = find_similar(signatures[is_validation], signatures[~is_validation], 0.8)
    other = {number for number, inside in zip(family, is_validation, strict=True) if not inside}
    expected = [number in other for number, inside in zip(family, is_validation, strict=True) if inside]
    assert found.tolist() == expected
    assert 0 < sum(expected) < len(expected)
    assert find_similar(signatures[:0], signatures, 0.8).tolist() == []
    assert not find_similar(signatures[:3], signatures[:0], 0.8).any()


@given(
    groups=st.lists(st.integers(0, 30), min_size=2, max_size=200).filter(lambda groups: len({*groups}) > 1),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 100),
)
def test_whole_groups_are_drawn_up_to_the_share(groups: list[int], share: float, seed: int) -> None:
    keys = np.array([hash_text(str(group)) for group in groups], dtype=np.uint64)
    count = max(1, round(share * len(groups)))
    drawn = draw_groups(keys, count)
    assert drawn is not None
    assert {*keys[drawn].tolist()}.isdisjoint(keys[~drawn].tolist())
    sizes = np.unique(keys, return_counts=True)[1]
    limit = min(count, len(groups) - 1)
    assert 0 < drawn.sum() <= max(limit, sizes.min())
    rest = np.unique(keys[~drawn], return_counts=True)[1]
    assert drawn.sum() == sizes.min() or drawn.sum() + rest.min() > limit  # no further group fits
    order = np.random.default_rng(seed).permutation(len(groups))
    np.testing.assert_array_equal(draw_groups(keys[order], count), drawn[order])


def test_one_group_cannot_be_drawn() -> None:
    assert draw_groups(np.array([7, 7], dtype=np.uint64), 1) is None

"""The baselines match hand calculations on a few tokens, and are ordered as expected on predictable text."""

import gzip
import lzma
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.evaluate import baselines, bigram, compression_bits, unigram
from tercet.evaluate.baselines import ngram_losses


def test_unigram_matches_hand_calculation() -> None:
    scores = unigram(np.array([0, 0, 1]), np.array([2, 0, 1, 2]), vocab_size=3, n_bytes=2, special_ids=frozenset({2}))
    nats = [-math.log(3 / 6), -math.log(2 / 6), -math.log(1 / 6)]
    assert scores.loss_nats_per_token == pytest.approx(sum(nats) / 3)
    assert scores.bits_per_byte == pytest.approx((nats[0] + nats[1]) / math.log(2) / 2)
    assert (scores.tokens, scores.context) == (3, 0)


def test_bigram_matches_hand_calculation() -> None:
    # After 0 come 0, 1, 1: c(0) = 3, t(0) = 2. After 1 comes 0: c(1) = 1, t(1) = 1. Nothing comes after 2.
    train, p = np.array([0, 0, 1, 0, 1]), [4 / 8, 3 / 8, 1 / 8]
    scores = bigram(train, np.array([0, 1, 2, 0, 0]), vocab_size=3, n_bytes=4)
    nats = [
        -math.log((2 + 2 * p[1]) / 5),  # 0 -> 1
        -math.log((0 + 1 * p[2]) / 2),  # 1 -> 2, not in the training text
        -math.log(p[0]),  # 2 has no successor in the training text
        -math.log((1 + 2 * p[0]) / 5),  # 0 -> 0
    ]
    assert scores.loss_nats_per_token == pytest.approx(sum(nats) / 4)
    assert (scores.tokens, scores.context) == (4, 1)


def ngram_probability(train: list[int], context: tuple[int, ...], token: int, vocab_size: int) -> float:
    """Return p(token | context) by the formula, from the occurrences of the context in the training text."""
    if not context:
        return (train.count(token) + 1) / (len(train) + vocab_size)
    n = len(context)
    following = [train[i + n] for i in range(len(train) - n) if tuple(train[i : i + n]) == context]
    shorter = ngram_probability(train, context[1:], token, vocab_size)
    kinds = len(set(following))
    return (following.count(token) + kinds * shorter) / (len(following) + kinds) if following else shorter


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 4), min_size=2, max_size=12))
def test_ngrams_match_the_formula(train: list[int], held_out: list[int]) -> None:
    losses = ngram_losses(np.array(train, np.uint16), np.array(held_out, np.uint16), vocab_size=5, order=4)
    for n, loss in enumerate(losses, start=1):
        contexts = [tuple(held_out[max(0, i - n + 1) : i]) for i in range(1, len(held_out))]
        p = [ngram_probability(train, context, w, 5) for context, w in zip(contexts, held_out[1:], strict=True)]
        assert loss == pytest.approx(-sum(map(math.log, p)) / len(p))
    assert len(losses) == max(1, min(4, len(train), len(held_out)))


def test_ngrams_of_orders_one_and_two_are_unigram_and_bigram() -> None:
    train, held_out = np.random.default_rng(5).integers(0, 7, (2, 300)).astype(np.uint16)
    expected = [model(train, held_out, vocab_size=7, n_bytes=1).loss_nats_per_token for model in (unigram, bigram)]
    assert ngram_losses(train, held_out, vocab_size=7, order=2) == pytest.approx(expected)


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(0, 4))
def test_probabilities_sum_to_one(train: list[int], first: int) -> None:
    ids = np.array(train, dtype=np.uint16)
    for model in (unigram, bigram):
        losses = [
            model(ids, np.array([first, w]), vocab_size=5, n_bytes=1).loss_nats_per_token for w in range(5)
        ]  # fmt: skip
        assert sum(math.exp(-loss) for loss in losses) == pytest.approx(1)


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_block_size_changes_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train, validation = np.random.default_rng(1).integers(0, 11, (2, 200)).astype(np.uint16)
    whole = [model(train, validation, vocab_size=11, n_bytes=200) for model in (unigram, bigram)]
    monkeypatch.setattr(baselines, "BLOCK", block)
    for model, expected in zip((unigram, bigram), whole, strict=True):
        scores = model(train, validation, vocab_size=11, n_bytes=200)
        assert scores.loss_nats_per_token == pytest.approx(expected.loss_nats_per_token, rel=1e-12)


def test_large_vocabulary_needs_no_table_of_pairs() -> None:
    ids = np.random.default_rng(2).integers(0, 60_000, 3000).astype(np.uint16)
    scores = bigram(ids, ids, vocab_size=60_000, n_bytes=1)  # a table of V squared counts would need 28 GB
    assert scores.loss_nats_per_token < unigram(ids, ids, vocab_size=60_000, n_bytes=1).loss_nats_per_token


def test_bigram_beats_unigram_if_pairs_matter() -> None:
    random = np.random.default_rng(3)
    transition = random.dirichlet(np.full(9, 0.2), 9)
    text = [0]
    for _ in range(6000):
        text.append(int(random.choice(9, p=transition[text[-1]])))
    train, validation = np.array(text[:5000]), np.array(text[5000:])
    unigram_scores, bigram_scores = (
        model(train, validation, vocab_size=9, n_bytes=1000) for model in (unigram, bigram)
    )
    entropy = np.mean([-math.log(transition[v, w]) for v, w in pairwise(validation)])
    assert (
        entropy < bigram_scores.loss_nats_per_token < entropy + 0.05 < unigram_scores.loss_nats_per_token < math.log(9)
    )


def test_compressors_match_the_command_line() -> None:
    text = "to be or not to be, that is the question; größer ≠ kleiner. " * 20
    bits = compression_bits([text[:7], "", text[7:100], text[100:]])
    data = text.encode()
    assert bits["gzip -9"] == 8 * len(gzip.compress(data, 9)) / len(data)
    assert bits["xz -9e"] == 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) / len(data)
    with pytest.raises(ValueError, match="no text"):
        compression_bits([])

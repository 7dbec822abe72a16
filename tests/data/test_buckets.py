"""Buckets of sentence pairs: every pair once per epoch, no batch above the budget, and little padding."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import Buckets, Pairs, PairsSpec, gather, prepare_pairs

LENGTHS = st.lists(st.tuples(st.integers(1, 13), st.integers(1, 13)), min_size=1, max_size=60)


def pairs(lengths: list[tuple[int, int]]) -> Pairs:
    """Return pairs of source ids 100, 101, ... and target ids 1000, 1001, ..., so that each id gives its position."""
    starts = [np.cumsum([0, *(pair[side] for pair in lengths)]) for side in (0, 1)]
    return Pairs(
        source=100 + np.arange(starts[0][-1]),
        source_starts=starts[0],
        target=1000 + np.arange(starts[1][-1]),
        target_starts=starts[1],
    )


def random_pairs(n: int, seed: int = 0) -> Pairs:
    generator = np.random.default_rng(seed)
    source = 2 + generator.poisson(14, n)
    target = np.maximum(1, source + generator.integers(-4, 5, n))
    return pairs(list(zip(source.tolist(), target.tolist(), strict=True)))


@given(lengths=LENGTHS, tokens=st.integers(7, 40), max_len=st.integers(3, 7), seed=st.integers(0, 3))
def test_every_pair_occurs_once_per_epoch_within_the_budget(
    lengths: list[tuple[int, int]], tokens: int, max_len: int, seed: int
) -> None:
    short = [number for number, pair in enumerate(lengths) if max(pair) <= max_len]
    if not short:
        with pytest.raises(UserError, match=f"every pair is longer than max_len={max_len} tokens, the shortest has"):
            Buckets(pairs(lengths), tokens=tokens, max_len=max_len, seed=seed)
        return
    buckets = Buckets(pairs(lengths), tokens=tokens, max_len=max_len, seed=seed)
    assert buckets.skipped == len(lengths) - len(short)
    for epoch in (0, 1, 5):
        numbers = [buckets.numbers(bucket, epoch).tolist() for bucket in range(len(buckets))]
        assert sorted(number for bucket in numbers for number in bucket) == short
        sides = [np.array([lengths[number] for number in bucket]) for bucket in numbers]
        assert all(len(side) * side.max() <= tokens for side in sides)
        slots = sum(side.max(axis=0).sum() * len(side) for side in sides)
        assert buckets.padding == pytest.approx(1 - sum(side.sum() for side in sides) / slots)
        assert buckets.real_tokens.tolist() == [side.sum() for side in sides]
        longest = [side.max() for side in sides]
        assert longest == sorted(longest)


@pytest.mark.parametrize("tokens", [101, 1024])
def test_bounds_are_those_of_every_epoch_and_the_order_is_not(tokens: int) -> None:
    data = random_pairs(997)
    buckets = Buckets(data, tokens=tokens, max_len=61, seed=3)
    first = [buckets.numbers(bucket, 0) for bucket in range(len(buckets))]
    for epoch in (1, 2):
        later = [buckets.numbers(bucket, epoch) for bucket in range(len(buckets))]
        for a, b in zip(first, later, strict=True):
            for lengths in (data.source_lengths, data.target_lengths):
                np.testing.assert_array_equal(lengths[a], lengths[b])  # row for row
        assert any(set(a) != set(b) for a, b in zip(first, later, strict=True)), "pairs change places"
    reseeded = Buckets(data, tokens=tokens, max_len=61, seed=4)
    assert any(reseeded.numbers(bucket, 0).tolist() != first[bucket].tolist() for bucket in range(len(buckets)))


def test_a_bucket_is_a_function_of_seed_epoch_and_number() -> None:
    data = random_pairs(499)
    requests = [(bucket, epoch) for epoch in (4, 0, 3, 4, 1, 0) for bucket in (7, 0, 3)]
    shared = Buckets(data, tokens=200, max_len=61, seed=3)
    for bucket, epoch in requests:
        fresh = Buckets(data, tokens=200, max_len=61, seed=3)  # as after a resume, without previous calls
        np.testing.assert_array_equal(shared.numbers(bucket, epoch), fresh.numbers(bucket, epoch))
    orders = {
        tuple(Buckets(data, tokens=200, max_len=61, seed=seed).numbers(7, epoch).tolist())
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9
    with pytest.raises(IndexError, match="bucket 99999 of"):
        shared.numbers(99999, 0)


def test_pair_above_the_budget_is_rejected() -> None:
    with pytest.raises(
        UserError, match=r"may have 128 tokens per side, more than the 100 .*or model\.max_len to at most"
    ):
        Buckets(random_pairs(7), tokens=100, max_len=128, seed=0)


@given(lengths=LENGTHS, data=st.data(), max_len=st.integers(1, 12))
def test_a_batch_by_hand(lengths: list[tuple[int, int]], data: st.DataObject, max_len: int) -> None:
    corpus = pairs(lengths)
    numbers = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=7))
    rows = gather(corpus, np.array(numbers), max_len=max_len, source_pad=3, bos=7, pad=5)
    sides = (
        (rows.source, rows.source_mask, corpus.source, corpus.source_starts, 3, []),
        (rows.target, rows.target_mask, corpus.target, corpus.target_starts, 5, [7]),
    )
    for tokens, mask, ids, starts, pad, prefix in sides:
        whole = [ids[starts[number] : starts[number + 1]].tolist() for number in numbers]
        # Cut to `max_len`; a cut source keeps its end token.
        cut = [ids[:max_len] if prefix or len(ids) <= max_len else [*ids[: max_len - 1], ids[-1]] for ids in whole]
        sentences = [prefix + ids for ids in cut]
        width = max(map(len, sentences))
        assert tokens.tolist() == [sentence + [pad] * (width - len(sentence)) for sentence in sentences]
        assert mask.tolist() == [[place < len(sentence) for place in range(width)] for sentence in sentences]
        assert (tokens.dtype, mask.dtype) == (np.int64, np.bool_)


@pytest.mark.slow
def test_millions_of_pairs_are_sorted_in_time() -> None:
    n = 500_000  # a ninth of WMT14
    generator = np.random.default_rng(0)
    lengths = 2 + generator.poisson(27, (2, n))
    starts = [np.concatenate([[0], np.cumsum(side)]) for side in lengths]
    empty = np.zeros(1, dtype=np.uint16)
    corpus = Pairs(source=empty, source_starts=starts[0], target=empty, target_starts=starts[1])
    start = time.process_time()
    buckets = Buckets(corpus, tokens=25_000, max_len=256, seed=0)
    for bucket in range(len(buckets)):
        buckets.numbers(bucket, 0)
    assert time.process_time() - start < 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("tokens", [1024, 4096, 8192])
def test_multi30k_has_little_padding(
    tokens: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.environ.get("TERCET_DATA"):
        pytest.skip("TERCET_DATA is not set")
    monkeypatch.setenv("TERCET_CACHE", str(Path(tmp_path_factory.getbasetemp(), "multi30k")))  # one tokenizer for all
    train = prepare_pairs(PairsSpec(source="multi30k")).train
    buckets = Buckets(train, tokens=tokens, max_len=128, seed=0)
    assert (buckets.skipped, buckets.padding < 0.06) == (0, True)
    real = slots = 0
    for bucket in range(len(buckets)):
        rows = gather(train, buckets.numbers(bucket, 1), max_len=128, source_pad=0, bos=1, pad=0)
        assert rows.source.size <= tokens
        assert rows.target[:, 1:].size <= tokens
        real += rows.source_mask.sum() + rows.target_mask[:, 1:].sum()
        slots += rows.source.size + rows.target[:, 1:].size
    assert 1 - real / slots == pytest.approx(buckets.padding)

"""Batches of similar lengths: every row once, within the budget, as full as possible, results in the original order."""

import itertools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.data.rows.batching import batch_by_length, cut_batches, cut_rows, deal_micro_batches, map_by_length

LENGTHS = st.lists(st.integers(0, 50), max_size=40)
TOKENS = st.integers(1, 200)


@given(lengths=LENGTHS, batch_tokens=TOKENS)
def test_rows_are_cut_in_their_order_into_the_fullest_batches(lengths: list[int], batch_tokens: int) -> None:
    cuts = cut_batches(np.array(lengths, dtype=np.int64), batch_tokens).tolist()
    assert (cuts[0], cuts[-1]) == (0, len(lengths))
    for start, stop in pairwise(cuts):
        assert stop == start + 1 or (stop - start) * max(lengths[start:stop]) <= batch_tokens
        if stop < len(lengths) and max(lengths[start : stop + 1]):
            size = (stop + 1 - start) * max(*lengths[start : stop + 1], 1)
            assert size > batch_tokens, "one more row would have fitted"


@given(lengths=LENGTHS, batch_tokens=TOKENS)
def test_batches_hold_every_row_once_the_longest_first(lengths: list[int], batch_tokens: int) -> None:
    batches = batch_by_length(lengths, batch_tokens)
    rows = [number for batch in batches for number in batch]
    assert rows == sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))
    for batch in batches:
        assert batch
        assert len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= batch_tokens


@given(lengths=LENGTHS, batch_tokens=TOKENS)
def test_results_are_in_the_order_of_the_rows(lengths: list[int], batch_tokens: int) -> None:
    requests = list[list[int]]()

    def answer(numbers: list[int]) -> list[tuple[int, int]]:
        requests.append(numbers)
        return [(number, lengths[number]) for number in numbers]

    assert map_by_length(answer, lengths, batch_tokens) == list(enumerate(lengths))
    assert requests == batch_by_length(lengths, batch_tokens)


def test_missing_result_and_empty_budget_are_rejected() -> None:
    with pytest.raises(ValueError, match="shorter"):
        map_by_length(lambda numbers: numbers[1:], [3, 4])
    with pytest.raises(ValueError, match="batch_tokens=0 must be 1 or more"):
        batch_by_length([3, 4], 0)


@given(n_rows=st.integers(1, 60), n_batches=st.integers(0, 20))
def test_rows_are_cut_into_batches_none_of_them_empty(n_rows: int, n_batches: int) -> None:
    numbers = np.arange(100, 100 + n_rows)
    batches = cut_rows(numbers, n_batches)
    assert np.concatenate(batches).tolist() == numbers.tolist()
    assert len(batches) == max(1, min(n_batches, n_rows))
    assert all(len(batch) for batch in batches)


@given(rows_per_rank=st.integers(1, 9), world=st.integers(1, 6), size=st.integers(1, 5), seed=st.integers(0, 99))
def test_micro_batches_are_of_like_length_and_each_row_is_in_one(
    rows_per_rank: int, world: int, size: int, seed: int
) -> None:
    numbers = np.arange(100, 100 + rows_per_rank * world)
    lengths = np.random.default_rng(seed).integers(1, 50, len(numbers))
    shares = [deal_micro_batches(numbers, lengths, size=size, rank=rank, world=world) for rank in range(world)]
    assert len({len(batches) for batches in shares}) == 1
    batches = [batch for batches in shares for batch in batches]
    assert sorted(np.concatenate(batches).tolist()) == numbers.tolist()
    assert all(1 <= len(batch) <= size for batch in batches)
    ranges = sorted((int(lengths[batch - 100].min()), int(lengths[batch - 100].max())) for batch in batches)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(ranges))


@pytest.mark.slow
@given(digits=st.integers(0, 4), odd=st.sampled_from([1, 3, 5]), size=st.integers(1, 4), data=st.data())
def test_ranks_of_any_power_of_two_have_the_same_micro_batches_in_the_same_order(
    digits: int, odd: int, size: int, data: st.DataObject
) -> None:
    """The two halves are of about equal length, because rows are dealt out in turn, not cut into blocks."""
    numbers = np.arange(odd * size << digits)
    lengths = np.array(data.draw(st.lists(st.integers(1, 99), min_size=len(numbers), max_size=len(numbers))))

    def deal(world: int) -> list[list[int]]:
        shares = (deal_micro_batches(numbers, lengths, size=size, rank=rank, world=world) for rank in range(world))
        return [batch.tolist() for share in shares for batch in share]

    assert all(deal(1 << power) == deal(1) for power in range(digits + 1))
    if digits:
        halves = [sum(max(lengths[batch]) for batch in part) for part in np.array_split(np.array(deal(1)), 2)]
        assert abs(halves[0] - halves[1]) <= lengths.max()

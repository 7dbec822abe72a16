"""Batches of like length: every row once, within the budget, as full as they can be, and the answers in order."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.data.batching import batch_by_length, cut_batches, map_by_length, share_rows

LENGTHS = st.lists(st.integers(0, 50), max_size=40)
TOKENS = st.integers(1, 200)


@given(lengths=LENGTHS, batch_tokens=TOKENS)
def test_rows_are_cut_in_their_order_into_the_fullest_batches(lengths: list[int], batch_tokens: int) -> None:
    cuts = cut_batches(np.array(lengths, dtype=np.int64), batch_tokens).tolist()
    assert (cuts[0], cuts[-1]) == (0, len(lengths))
    for start, stop in pairwise(cuts):
        assert stop == start + 1 or (stop - start) * max(lengths[start:stop]) <= batch_tokens
        if stop < len(lengths) and max(lengths[start : stop + 1]):
            more = (stop + 1 - start) * max(*lengths[start : stop + 1], 1)
            assert more > batch_tokens, "one more row would have fitted"


@given(lengths=LENGTHS, batch_tokens=TOKENS)
def test_batches_hold_every_row_once_the_longest_first(lengths: list[int], batch_tokens: int) -> None:
    batches = batch_by_length(lengths, batch_tokens)
    rows = [number for batch in batches for number in batch]
    assert rows == sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))
    for batch in batches:
        assert batch
        assert len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= batch_tokens


@given(lengths=LENGTHS, batch_tokens=TOKENS)
def test_answers_come_in_the_order_of_the_rows(lengths: list[int], batch_tokens: int) -> None:
    asked = list[list[int]]()

    def answer(numbers: list[int]) -> list[tuple[int, int]]:
        asked.append(numbers)
        return [(number, lengths[number]) for number in numbers]

    assert map_by_length(answer, lengths, batch_tokens) == list(enumerate(lengths))
    assert asked == batch_by_length(lengths, batch_tokens)


def test_an_answer_too_few_and_a_budget_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        map_by_length(lambda numbers: numbers[1:], [3, 4])
    with pytest.raises(ValueError, match="batch_tokens=0 must be 1 or more"):
        batch_by_length([3, 4], 0)


@given(n_rows=st.integers(1, 60), n_batches=st.integers(0, 20), world=st.integers(1, 5))
def test_devices_share_rows_in_equally_many_batches(n_rows: int, n_batches: int, world: int) -> None:
    numbers = np.arange(100, 100 + n_rows)
    shares = [share_rows(numbers, n_batches, rank=rank, world=world) for rank in range(world)]
    assert sorted(np.concatenate([batch for share in shares for batch in share]).tolist()) == numbers.tolist()
    assert len({len(share) for share in shares}) == 1
    assert n_rows < world or all(len(batch) for share in shares for batch in share)

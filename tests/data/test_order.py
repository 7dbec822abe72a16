"""The order of rows is a pure function of the step, with every row exactly once per epoch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.data import Order


@given(n_rows=st.integers(1, 23), batch_size=st.integers(1, 31), seed=st.integers(0, 2**40))
def test_every_row_once_per_epoch(n_rows: int, batch_size: int, seed: int) -> None:
    order = Order(n_rows, batch_size, seed)
    steps = -(-3 * n_rows // batch_size)
    numbers, epochs = (np.concatenate(part) for part in zip(*map(order.rows, range(steps)), strict=True))
    for epoch in range(3):
        assert sorted(numbers[epochs == epoch]) == list(range(n_rows))


def test_any_step_can_be_computed_first() -> None:
    forwards = [Order(7, 3, 5).rows(step) for step in range(20)]
    backwards = [Order(7, 3, 5).rows(step) for step in reversed(range(20))]
    np.testing.assert_array_equal(forwards, backwards[::-1])


def test_permutation_is_independent_of_batch_size() -> None:
    np.testing.assert_array_equal(Order(30, 5, 1).rows(1)[0], Order(30, 10, 1).rows(0)[0][5:])


def test_seeds_and_epochs_differ() -> None:
    orders = {tuple(Order(50, 50, seed).rows(epoch)[0].tolist()) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_shifts_fill_their_range() -> None:
    shifts = {Order(7, 3, 5).shift(epoch, 5) for epoch in range(100)}
    assert shifts == set(range(5))
    assert Order(7, 3, 5).shift(4, 64) == Order(9, 2, 5).shift(4, 64)
    assert len({Order(7, 3, seed).shift(epoch, 1 << 40) for seed in range(4) for epoch in range(4)}) == 16


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ValueError, match="got 0, 3, 0"):
        Order(0, 3)

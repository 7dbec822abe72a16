"""Orders of rows for endless data: each row once per epoch, exact shares, functions of (seed, position) only."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.data.rows.layouts import Mixture, ShardGroups
from tercet.data.rows.order import Layout, Order, ShuffledLayout

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=7).map(tuple)


def line(layout: Layout, n: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    return layout.rows(np.arange(n, dtype=np.int64), seed)


@given(sizes=SIZES, group=st.integers(1, 8), seed=st.integers(0, 1 << 62))
def test_every_row_occurs_once_per_epoch_in_order_of_groups(sizes: tuple[int, ...], group: int, seed: int) -> None:
    layout = ShardGroups(sizes, group)
    n_rows = sum(sizes)
    numbers, epochs = line(layout, 3 * n_rows, seed)
    assert epochs.tolist() == np.repeat([0, 1, 2], n_rows).tolist()
    row_shards = np.repeat(np.arange(len(sizes)), sizes)
    for epoch in range(3):
        rows = numbers[epoch * n_rows : (epoch + 1) * n_rows]
        assert sorted(rows.tolist()) == list(range(n_rows))
        groups = layout.groups(seed, epoch)
        assert sorted(np.concatenate(groups).tolist()) == list(range(len(sizes)))
        start = 0
        for shards in groups:
            end = start + sum(sizes[shard] for shard in shards)
            assert set(row_shards[rows[start:end]].tolist()) == set(shards.tolist())
            start = end


@given(sizes=SIZES, group=st.integers(1, 8), position=st.integers(0, 200))
def test_following_rows_are_of_the_next_group(sizes: tuple[int, ...], group: int, position: int) -> None:
    layout = ShardGroups(sizes, group)
    epoch, index = divmod(position, sum(sizes))
    order = [shards.tolist() for e in (epoch, epoch + 1) for shards in layout.groups(5, e)]
    ends = np.cumsum([sum(sizes[shard] for shard in shards) for shards in order])
    group_index = int(np.searchsorted(ends, index, side="right"))
    assert layout.following(position, 5).tolist() == order[group_index + 1]


@pytest.mark.slow
@given(data=st.data(), n=st.integers(1, 400))
@settings(max_examples=50)
def test_a_mixture_holds_its_shares_and_reads_each_source_in_order(data: st.DataObject, n: int) -> None:
    weights = data.draw(st.lists(st.floats(0.05, 1), min_size=2, max_size=4))
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=len(weights), max_size=len(weights)))
    shares = tuple(weight / sum(weights) for weight in weights)
    layout = Mixture(tuple(ShuffledLayout(size) for size in sizes), shares)
    numbers, epochs = line(layout, n)
    first = np.cumsum([0, *sizes])
    row_sources = np.searchsorted(first, numbers, side="right") - 1
    for source, size in enumerate(sizes):
        mine, part_epochs = numbers[row_sources == source] - first[source], epochs[row_sources == source]
        assert abs(len(mine) - n * shares[source]) <= len(weights)
        assert part_epochs.tolist() == (np.arange(len(mine)) // size).tolist()
        assert layout.part_position(source, n) == len(mine)
        for start in range(0, len(mine) - size + 1, size):
            assert sorted(mine[start : start + size].tolist()) == list(range(size))  # each row once per epoch


def test_equal_sources_are_not_in_the_same_order() -> None:
    numbers, _ = line(Mixture((ShuffledLayout(50), ShuffledLayout(50)), (0.5, 0.5)), 100)
    first, second = numbers[numbers < 50], numbers[numbers >= 50] - 50
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    "layout", [ShardGroups((5, 9, 2, 7), 2), Mixture((ShuffledLayout(7), ShuffledLayout(19)), (0.3, 0.7))]
)
def test_step_is_independent_of_earlier_steps(layout: Layout) -> None:
    order = Order(layout.n_rows, 4, 11, layout)
    whole, epochs = line(layout, 80, 11)
    for step in (19, 3, 0, 7):  # in any order
        numbers, part_epochs = order.rows(step)
        assert numbers.tolist() == whole[4 * step : 4 * step + 4].tolist()
        assert part_epochs.tolist() == epochs[4 * step : 4 * step + 4].tolist()
    assert Order(layout.n_rows, 4, 12, layout).rows(3)[0].tolist() != order.rows(3)[0].tolist()

"""Bookkeeping of the KV cache: columns, rows that share a source, and growing the capacity."""

import pytest
import torch

from tercet.nn import StackCache

B, G, K, CAPACITY, M = 3, 2, 5, 7, 11


def cache() -> StackCache:
    """Return a cache in which no two values are equal, so that wrong moves are detected."""
    made = StackCache(n_layers=2, n_kv_heads=G, d_head=K, batch=B, capacity=CAPACITY)
    made.lengths = torch.tensor([4, 1, 6])
    made.memory_token_mask = torch.arange(M) < torch.tensor([[M], [2], [5]])
    for layer in made.layers:
        layer.self_kv.keys, layer.self_kv.values = torch.randn(2, B, G, CAPACITY + 1, K).unbind()
        layer.cross_kv.pair = torch.randn(B, G, M, K), torch.randn(B, G, M, K)
    return made


def own(made: StackCache) -> list[torch.Tensor]:
    return [table for layer in made.layers for table in (layer.self_kv.keys, layer.self_kv.values)]


def cross(made: StackCache) -> list[torch.Tensor]:
    return [table for layer in made.layers for table in layer.cross_kv.pair or ()]


def assert_all_equal(given: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(given) == len(expected) > 0
    assert all(torch.equal(one, other) for one, other in zip(given, expected, strict=True))


def test_rows_write_at_their_own_length_and_overflow_goes_to_the_spare_column() -> None:
    made = cache()
    assert made.positions(3).tolist() == [[4, 5, 6], [1, 2, 3], [6, 7, 7]]
    mask = made.mask(made.positions(1))
    assert mask.shape == (B, 1, 1, CAPACITY + 1)
    assert mask.sum(-1).flatten().tolist() == [5, 2, 7]


def test_read_returns_the_last_real_hidden_state_and_counts_tokens() -> None:
    made, hidden = cache(), torch.randn(B, 4, 24)
    last = made.read(hidden, torch.tensor([4, 1, 2]))
    assert torch.equal(last, torch.stack((hidden[0, 3], hidden[1, 0], hidden[2, 1])))
    assert made.lengths.tolist() == [8, 2, 8]


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0, 1], [2]], ids=["permuted", "repeated", "dropped"])
def test_reorder_moves_whole_rows(rows: list[int]) -> None:
    made, before = cache(), cache()
    before.layers, before.memory_token_mask = made.layers, made.memory_token_mask
    tables = own(made), cross(made)
    made.reorder(torch.tensor(rows))
    assert made.lengths.tolist() == before.lengths[rows].tolist()
    assert_all_equal(own(made), [table[rows] for table in tables[0]])
    assert_all_equal(cross(made), [table[rows] for table in tables[1]])
    assert torch.equal(made.memory_token_mask, before.memory_token_mask[rows])


def test_spread_rows_are_adjacent_and_share_their_source() -> None:
    made = cache()
    tables, sources, token_mask = own(made), cross(made), made.memory_token_mask
    made.expand_beams(2)
    made.expand_beams(3)
    assert made.rows_per_source == 6
    assert made.lengths.tolist() == [4] * 6 + [1] * 6 + [6] * 6
    assert_all_equal(own(made), [table.repeat_interleave(6, dim=0) for table in tables])
    assert all(one is other for one, other in zip(cross(made), sources, strict=True))
    assert made.memory_token_mask is token_mask


def test_reordering_swaps_rows_within_a_group_and_drops_whole_groups() -> None:
    made = cache()
    tables, sources, token_mask = own(made), cross(made), made.memory_token_mask
    made.expand_beams(2)
    made.reorder(torch.tensor([1, 1, 3, 2, 4, 5]))
    assert all(one is other for one, other in zip(cross(made), sources, strict=True))
    made.reorder(torch.tensor([5, 4, 0, 1]))  # drops the middle group and swaps the others
    assert made.lengths.tolist() == [6, 6, 4, 4]
    assert_all_equal(own(made), [table[[2, 2, 0, 0]] for table in tables])
    assert_all_equal(cross(made), [table[[2, 0]] for table in sources])
    assert torch.equal(made.memory_token_mask, token_mask[[2, 0]])
    with pytest.raises(ValueError, match="must be a multiple of 2, the rows per source: 3"):
        made.reorder(torch.tensor([0, 1, 2]))


def test_grown_columns_are_zero_and_the_others_unchanged() -> None:
    made = cache()
    tables, sources = own(made), cross(made)
    made.grow(CAPACITY + 4)
    assert made.capacity == 11
    for table, before in zip(own(made), tables, strict=True):
        assert table.shape == (B, G, CAPACITY + 4 + 1, K)
        assert torch.equal(table[:, :, :CAPACITY], before[:, :, :CAPACITY])
        assert (table[:, :, CAPACITY:] == 0).all()  # the contents of the spare column are discarded
    assert_all_equal(cross(made), sources)
    assert made.lengths.tolist() == [4, 1, 6]
    assert made.positions(2).tolist() == [[4, 5], [1, 2], [6, 7]]
    with pytest.raises(ValueError, match="capacity=10 must be at least the current capacity of 11"):
        made.grow(10)

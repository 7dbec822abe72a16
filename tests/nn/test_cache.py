"""Bookkeeping of the KV cache: columns, rows that share a source, and growing the capacity."""

import pytest
import torch

from tercet.nn import StackCache

B, G, K, CAPACITY, M = 3, 2, 5, 7, 11


def make_cache() -> StackCache:
    """Return a cache in which no two values are equal, so that wrong moves are detected."""
    cache = StackCache(n_layers=2, n_kv_heads=G, d_head=K, batch=B, capacity=CAPACITY)
    cache.lengths = torch.tensor([4, 1, 6])
    cache.memory_token_mask = torch.arange(M) < torch.tensor([[M], [2], [5]])
    for layer in cache.layers:
        layer.self_kv.keys, layer.self_kv.values = torch.randn(2, B, G, CAPACITY + 1, K).unbind()
        layer.cross_kv.pair = torch.randn(B, G, M, K), torch.randn(B, G, M, K)
    return cache


def self_tables(cache: StackCache) -> list[torch.Tensor]:
    return [table for layer in cache.layers for table in (layer.self_kv.keys, layer.self_kv.values)]


def cross_tables(cache: StackCache) -> list[torch.Tensor]:
    return [table for layer in cache.layers for table in layer.cross_kv.pair or ()]


def assert_all_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_rows_write_at_their_own_length_and_overflow_goes_to_the_spare_column() -> None:
    cache = make_cache()
    assert cache.positions(3).tolist() == [[4, 5, 6], [1, 2, 3], [6, 7, 7]]
    mask = cache.mask(cache.positions(1))
    assert mask.shape == (B, 1, 1, CAPACITY + 1)
    assert mask.sum(-1).flatten().tolist() == [5, 2, 7]


def test_read_returns_the_last_real_hidden_state_and_counts_tokens() -> None:
    cache, hidden = make_cache(), torch.randn(B, 4, 24)
    last = cache.read(hidden, torch.tensor([4, 1, 2]))
    assert torch.equal(last, torch.stack((hidden[0, 3], hidden[1, 0], hidden[2, 1])))
    assert cache.lengths.tolist() == [8, 2, 8]


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 0, 1], [2]], ids=["permuted", "repeated", "dropped"])
def test_reorder_moves_whole_rows(rows: list[int]) -> None:
    cache, before = make_cache(), make_cache()
    before.layers, before.memory_token_mask = cache.layers, cache.memory_token_mask
    tables = self_tables(cache), cross_tables(cache)
    cache.reorder(torch.tensor(rows))
    assert cache.lengths.tolist() == before.lengths[rows].tolist()
    assert_all_equal(self_tables(cache), [table[rows] for table in tables[0]])
    assert_all_equal(cross_tables(cache), [table[rows] for table in tables[1]])
    assert torch.equal(cache.memory_token_mask, before.memory_token_mask[rows])


def test_spread_rows_are_adjacent_and_share_their_source() -> None:
    cache = make_cache()
    tables, sources, token_mask = self_tables(cache), cross_tables(cache), cache.memory_token_mask
    cache.expand_beams(2)
    cache.expand_beams(3)
    assert cache.rows_per_source == 6
    assert cache.lengths.tolist() == [4] * 6 + [1] * 6 + [6] * 6
    assert_all_equal(self_tables(cache), [table.repeat_interleave(6, dim=0) for table in tables])
    assert all(found is expected for found, expected in zip(cross_tables(cache), sources, strict=True))
    assert cache.memory_token_mask is token_mask


def test_reordering_swaps_rows_within_a_group_and_drops_whole_groups() -> None:
    cache = make_cache()
    tables, sources, token_mask = self_tables(cache), cross_tables(cache), cache.memory_token_mask
    cache.expand_beams(2)
    cache.reorder(torch.tensor([1, 1, 3, 2, 4, 5]))
    assert all(found is expected for found, expected in zip(cross_tables(cache), sources, strict=True))
    cache.reorder(torch.tensor([5, 4, 0, 1]))  # drops the middle group and swaps the others
    assert cache.lengths.tolist() == [6, 6, 4, 4]
    assert_all_equal(self_tables(cache), [table[[2, 2, 0, 0]] for table in tables])
    assert_all_equal(cross_tables(cache), [table[[2, 0]] for table in sources])
    assert torch.equal(cache.memory_token_mask, token_mask[[2, 0]])
    with pytest.raises(ValueError, match="must be a multiple of 2, the rows per source: 3"):
        cache.reorder(torch.tensor([0, 1, 2]))


def test_grown_columns_are_zero_and_the_others_unchanged() -> None:
    cache = make_cache()
    tables, sources = self_tables(cache), cross_tables(cache)
    cache.grow(CAPACITY + 4)
    assert cache.capacity == 11
    for table, before in zip(self_tables(cache), tables, strict=True):
        assert table.shape == (B, G, CAPACITY + 4 + 1, K)
        assert torch.equal(table[:, :, :CAPACITY], before[:, :, :CAPACITY])
        assert (table[:, :, CAPACITY:] == 0).all()  # the contents of the spare column are discarded
    assert_all_equal(cross_tables(cache), sources)
    assert cache.lengths.tolist() == [4, 1, 6]
    assert cache.positions(2).tolist() == [[4, 5], [1, 2], [6, 7]]
    with pytest.raises(ValueError, match="capacity=10 must be at least the current capacity of 11"):
        cache.grow(10)

"""Rows join and leave the slots of a cache: each keeps its own columns, without data of earlier rows."""

import pytest
import torch

from tercet.nn import StackCache
from tercet.serve.engine.cache_slots import CacheSlots

G, K, CAPACITY = 2, 5, 7


def cache_of_three() -> StackCache:
    """Return a cache in which all values differ, so that no two entries can be confused."""
    cache = StackCache(n_layers=2, n_kv_heads=G, d_head=K, batch=3, capacity=CAPACITY)
    cache.lengths = torch.tensor([4, 1, 6])
    for layer in cache.layers:
        layer.self_kv.keys, layer.self_kv.values = torch.randn(2, 3, G, CAPACITY + 1, K).unbind()
    return cache


def key_value_tables(cache: StackCache) -> list[torch.Tensor]:
    return [table for layer in cache.layers for table in (layer.self_kv.keys, layer.self_kv.values)]


def filled_slots(*lengths: int) -> CacheSlots:
    """Return slots with rows of these lengths, each from a separate cache."""
    slots = CacheSlots(StackCache(n_layers=2, n_kv_heads=G, d_head=K, batch=5, capacity=0), max_columns=CAPACITY)
    for length in lengths:
        slots.join(cache_of_three(), 1, length)
    return slots


def test_joining_rows_copy_only_their_real_columns() -> None:
    slots, source = filled_slots(4, 2, 6), cache_of_three()
    slots.leave(2)  # longer than the row that replaces it
    before = key_value_tables(slots.tables)
    slots.join(source, 2, 3)
    assert slots.lengths == [4, 2, 3]
    for table, previous, source_table in zip(
        key_value_tables(slots.tables), before, key_value_tables(source), strict=True
    ):
        assert torch.equal(table[:2], previous[:2])
        assert torch.equal(table[2, :, :3], source_table[2, :, :3])
        assert (table[2, :, 3:] == 0).all()


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_only_the_last_row_moves_to_the_slot_of_a_leaving_row(slot: int) -> None:
    slots = filled_slots(4, 5, 2)
    before = [table.clone() for table in key_value_tables(slots.tables)]
    slots.leave(slot)
    order = {0: [2, 1], 1: [0, 2], 2: [0, 1]}[slot]
    assert slots.lengths == [[4, 5, 2][row] for row in order]
    for table, previous in zip(key_value_tables(slots.tables), before, strict=True):
        for new_slot, row in enumerate(order):
            assert torch.equal(table[new_slot], previous[row])  # including the zeros after its last token


def test_rows_is_a_view_as_wide_as_the_longest_row() -> None:
    slots = filled_slots(4, 2)
    part = slots.rows()
    assert (part.capacity, part.lengths.tolist()) == (5, [4, 2])
    for table, whole in zip(key_value_tables(part), key_value_tables(slots.tables), strict=True):
        assert table.shape == (2, G, 6, K)
        assert table.data_ptr() == whole.data_ptr()
    part.advance(1)
    assert slots.lengths == [4, 2]  # until `advance` is called
    slots.advance()
    assert slots.lengths == [5, 3]


def test_slots_grow_up_to_their_maximum() -> None:
    slots = CacheSlots(StackCache(n_layers=1, n_kv_heads=G, d_head=K, batch=2, capacity=0), max_columns=300)
    wide = StackCache(n_layers=1, n_kv_heads=G, d_head=K, batch=1, capacity=290)
    capacities = []
    for length in (3, 64, 65, 130, 290):
        slots.join(wide, 0, length)
        capacities.append(slots.tables.capacity)
        slots.leave(0)
    assert capacities == [64, 64, 128, 256, 300]
    with pytest.raises(ValueError, match="a row of 301 tokens exceeds the maximum of 300"):
        slots.join(wide, 0, 301)
    slots.join(wide, 0, 1), slots.join(wide, 0, 1)
    with pytest.raises(ValueError, match="all 2 slots are in use"):
        slots.join(wide, 0, 1)

"""Pools of texts, read ahead so that texts of similar length can form batches."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from tercet import limits

POOL = 1024  # usual number of texts; batches of them have little padding
Item = TypeVar("Item")


def take_pool(items: Iterator[Item], lines: int, text: Callable[[Item], str]) -> list[Item]:
    """Return the next items of an iterator, which are then sorted by length and batched.

    Args:
        items: Iterator, which is advanced.
        lines: Maximum number of items. Fewer are returned if their texts have `limits.POOL_CHARACTERS` in total.
        text: Function that returns the text of an item.

    Returns:
        The items; an empty list if the iterator is exhausted.
    """
    pool, characters = list[Item](), 0
    for item in items:
        pool.append(item)
        characters += len(text(item))
        if len(pool) >= lines or characters >= limits.POOL_CHARACTERS:
            break
    return pool

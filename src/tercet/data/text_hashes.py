"""Hashes of texts, to find duplicates and near duplicates and to draw the validation part.

Near duplicates are texts that are equal except for case, punctuation and white space.
"""

import hashlib
import re
from array import array

import numpy as np

from tercet.config import UserError

IGNORED_CHARACTERS = re.compile(r"[\W_]+")  # everything except letters and digits


def hash_text(text: str) -> int:
    """Return a pseudo-random number from 0 to 2^64 - 1 that depends only on the text."""
    return hash_bytes(text.encode())


def hash_bytes(data: bytes) -> int:
    """Return the same kind of number as `hash_text`, for bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


def hash_near_duplicate(text: str) -> int:
    """Return a hash of the same kind as `hash_text`, which is equal for near duplicates."""
    return hash_text(ignore_characters(text) or text)


def ignore_characters(text: str) -> str:
    """Return the text without the differences between near duplicates: case, punctuation and white space."""
    return IGNORED_CHARACTERS.sub("", text.casefold())


def count_near_duplicates(validation: "np.ndarray | array[int]", train: "np.ndarray | array[int]") -> int:
    """Return the number of validation items that are near duplicates of training items, by their hashes."""
    return int(np.isin(np.asarray(validation, dtype=np.uint64), np.asarray(train, dtype=np.uint64)).sum())


def draw_validation(text_hashes: "array[int]", count: int, error: str) -> frozenset[int]:
    """Return the smallest hashes that together belong to at most `count` texts and at most a tenth of all texts.

    The limit is at least one text. Hashes that belong to more texts are skipped. If there are no others, return the
    hash of the fewest texts.

    Args:
        text_hashes: Hash of each text.
        count: Maximum number of texts to draw.
        error: Message of the error.

    Raises:
        UserError: If all texts are equal; `error` is its message.
    """
    values, counts = np.unique(np.frombuffer(text_hashes, dtype=np.uint64), return_counts=True)
    if len(values) < 2:
        raise UserError(error)
    limit = max(1, min(count, len(text_hashes) // 10))
    fitting = counts <= limit
    if not fitting.any():  # few distinct texts, each repeated many times
        return frozenset([int(values[counts.argmin()])])
    return frozenset(values[fitting][np.cumsum(counts[fitting]) <= limit].tolist())


def draw_groups(keys: np.ndarray, count: int) -> np.ndarray | None:
    """Return a mask (N,) of items to hold out, in whole groups that together have at most `count` items.

    Groups are drawn in the order of their keys. Those that would exceed the limit are skipped, so that a large group
    stays in the training part. If every group is larger than the limit, the smallest one is drawn. The result is None
    if there is only one group.

    Args:
        keys: (N,) uint64 hash of the group of each item.
        count: Maximum number of items to draw; at least one item is not drawn.
    """
    _, groups, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        return None
    is_drawn, left = np.zeros(len(sizes), dtype=bool), min(count, len(keys) - 1)
    for group, size in enumerate(sizes.tolist()):
        if size <= left:
            is_drawn[group], left = True, left - size
        if not left:
            break
    if not is_drawn.any():
        is_drawn[sizes.argmin()] = True
    return is_drawn[groups]

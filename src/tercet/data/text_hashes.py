"""Hashes of texts: which are equal, which are near duplicates, and which are drawn for validation.

Near duplicates are texts that are equal except for case, punctuation and white space.
"""

import hashlib
import re
from array import array

import numpy as np

from tercet.config import UserError

NOT_COMPARED = re.compile(r"[\W_]+")  # in near duplicates: all but letters and digits


def hash_text(text: str) -> int:
    """A number from 0 to 2^64 - 1 that looks random, the same for the same text."""
    return hash_bytes(text.encode())


def hash_bytes(data: bytes) -> int:
    """The same of bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


def hash_near_duplicate(text: str) -> int:
    """Return a number as `hash_text` does, the same for near duplicates."""
    return hash_text(NOT_COMPARED.sub("", text.casefold()) or text)


def count_near_duplicates(validation: "np.ndarray | array[int]", train: "np.ndarray | array[int]") -> int:
    """Return how many items of the validation part are near duplicates of training items, by their hashes."""
    return int(np.isin(np.asarray(validation, dtype=np.uint64), np.asarray(train, dtype=np.uint64)).sum())


def draw_validation(text_hashes: "array[int]", count: int, error: str) -> frozenset[int]:
    """The smallest places, as many as stand for `count` texts, or for a tenth of all where that is less.

    Raises:
        UserError: `error`, where all texts are one.
    """
    values, counts = np.unique(np.frombuffer(text_hashes, dtype=np.uint64), return_counts=True)
    if len(values) < 2:
        raise UserError(error)
    limit = max(1, min(count, len(text_hashes) // 10))
    fitting = counts <= limit
    if not fitting.any():  # a handful of texts, each many times
        return frozenset([int(values[counts.argmin()])])
    return frozenset(values[fitting][np.cumsum(counts[fitting]) <= limit].tolist())

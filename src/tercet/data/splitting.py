"""Training and validation parted: ids that are all in `train.bin`, without holding them in memory, and sentences by
their hash."""

import hashlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tercet.config import UserError

AT_ONCE = 1 << 22  # ids copied together


def split_tail(
    folder: Path, starts: np.ndarray, dtype: np.dtype[Any], fraction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Move the last `fraction` of the tokens; where documents start on either side.

    A document that is cut in two starts on both sides.

    Raises:
        UserError: where there are too few tokens for both sides.
    """
    path = folder / "train.bin"
    total = path.stat().st_size // dtype.itemsize
    n_train = int(total * (1 - fraction))
    if not 0 < n_train < total:
        raise UserError(f"the data has {total} tokens, too few to keep {fraction:g} of them; give more text")
    ids = np.memmap(path, dtype, mode="r")
    _copy(ids, [(n_train, total)], folder / "validation.bin")
    del ids  # Windows does not shorten a file that is mapped
    with path.open("r+b") as file:
        file.truncate(n_train * dtype.itemsize)
    tail = starts[starts > n_train] - n_train
    return starts[starts < n_train], np.append(0, tail).astype(np.int64)


def split_documents(
    folder: Path, starts: np.ndarray, dtype: np.dtype[Any], fraction: float, *, name: str
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Move `fraction` of the documents, at least one: those whose number has the smallest hashes.

    Returns:
        where documents start on either side, and which documents (n_documents,) were moved.

    Raises:
        UserError: where there is only one document.
    """
    n_documents = len(starts)
    n_moved = min(max(1, round(n_documents * fraction)), n_documents - 1)
    if n_moved < 1:
        raise UserError(f"{name} is a single document, which cannot be divided; set data.validation to {{kind: tail}}")
    hashes = [hashlib.sha256(str(number).encode()).digest() for number in range(n_documents)]
    moved = np.zeros(n_documents, dtype=bool)
    moved[sorted(range(n_documents), key=hashes.__getitem__)[:n_moved]] = True

    everything = folder / "all.bin"
    (folder / "train.bin").rename(everything)
    ids = np.memmap(everything, dtype, mode="r")
    ends = np.append(starts[1:], len(ids))
    for side, chosen in (("train", ~moved), ("validation", moved)):
        _copy(ids, zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True), folder / f"{side}.bin")
    del ids
    everything.unlink()
    lengths = ends - starts
    return (_starts(lengths[~moved]), _starts(lengths[moved])), moved


def hash_text(text: str) -> int:
    """A number from 0 to 2^64 - 1 that looks random, the same for the same text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def draw_validation(text_hashes: "array[int]", count: int, error: str) -> frozenset[int]:
    """The smallest places, as many as stand for `count` texts, or for a tenth of all where that is less.

    Raises:
        UserError: `error`, where all texts are one.
    """
    values, counts = np.unique(np.frombuffer(text_hashes, dtype=np.uint64), return_counts=True)
    if len(values) < 2:
        raise UserError(error)
    limit = max(1, min(count, len(text_hashes) // 10))
    fits = counts <= limit
    if not fits.any():  # a handful of texts, each many times
        return frozenset([int(values[counts.argmin()])])
    return frozenset(values[fits][np.cumsum(counts[fits]) <= limit].tolist())


def _copy(ids: np.ndarray, ranges: Any, path: Path) -> None:
    with path.open("wb") as file:
        for start, end in ranges:
            for block in _blocks(ids, start, end):
                file.write(block.tobytes())


def _blocks(ids: np.ndarray, start: int, end: int) -> Iterator[np.ndarray]:
    for first in range(start, end, AT_ONCE):
        yield ids[first : min(first + AT_ONCE, end)]


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.append(0, np.cumsum(lengths)[:-1]).astype(np.int64)

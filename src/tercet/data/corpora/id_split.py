"""Split of the ids in `train.bin` into a training and a validation part, with little memory."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tercet.config import UserError
from tercet.data.corpora.folds import find_fold
from tercet.data.min_hash import find_clusters, hash_signatures
from tercet.data.split_specs import DocumentClusters, Documents, Fold
from tercet.data.text_hashes import draw_groups

REMEDY = "set data.documents to line or blank_line, which divides a file into documents, or add documents"
BLOCK_IDS = 1 << 22  # ids copied together


def split_tail(
    folder: Path, starts: np.ndarray, dtype: np.dtype[Any], fraction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Move the last `fraction` of the tokens from `train.bin` to `validation.bin`.

    A document that is cut in two starts in both parts.

    Args:
        folder: Folder that contains `train.bin`.
        starts: (D,) position of the start of each document.
        dtype: Type of the ids.
        fraction: Fraction of the tokens to move.

    Returns:
        The starts of the documents in the training part, and those in the validation part.

    Raises:
        UserError: If there are too few tokens for both parts.
    """
    path = folder / "train.bin"
    total = path.stat().st_size // dtype.itemsize
    n_train = int(total * (1 - fraction))
    if not 0 < n_train < total:
        raise UserError(f"the data has {total} tokens, too few to hold out {fraction:g} of them; use more text")
    ids = np.memmap(path, dtype, mode="r")
    _copy(ids, [(n_train, total)], folder / "validation.bin")
    del ids  # Windows cannot truncate a mapped file
    with path.open("r+b") as file:
        file.truncate(n_train * dtype.itemsize)
    tail = starts[starts > n_train] - n_train
    return starts[starts < n_train], np.append(0, tail).astype(np.int64)


def split_documents(
    folder: Path, starts: np.ndarray, in_validation: np.ndarray, dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Move documents from `train.bin` to `validation.bin`.

    Args:
        folder: Folder that contains `train.bin`.
        starts: (D,) position of the start of each document.
        in_validation: (D,) mask of the documents to move.
        dtype: Type of the ids.

    Returns:
        The starts of the documents in the training and in the validation part.
    """
    all_ids_path = folder / "all.bin"
    (folder / "train.bin").rename(all_ids_path)
    ids = np.memmap(all_ids_path, dtype, mode="r")
    ends = np.append(starts[1:], len(ids))
    for side, selected in (("train", ~in_validation), ("validation", in_validation)):
        _copy(ids, zip(starts[selected].tolist(), ends[selected].tolist(), strict=True), folder / f"{side}.bin")
    del ids
    all_ids_path.unlink()
    lengths = ends - starts
    return _starts(lengths[~in_validation]), _starts(lengths[in_validation])


def draw_documents(
    split: Documents | DocumentClusters | Fold,
    text_hashes: np.ndarray,
    *,
    name: str,
    groups: np.ndarray | None = None,
    signatures: np.ndarray | None = None,
) -> np.ndarray:
    """Return a mask (D,) of the documents in the validation part: those of a fold, or about a fraction, at least one.

    Documents are drawn by a hash of their number. Equal documents are drawn together, by the number of the first one.
    Groups and clusters of similar documents are drawn by a hash of their content, so that the order makes no
    difference.

    Args:
        split: Settings of the split.
        text_hashes: (D,) uint64, equal for equal documents.
        name: Name of the data in the message.
        groups: (D,) uint64, equal for documents of the same group, which are drawn together; None without groups.
        signatures: (D, HASHES) signatures of `MinHash`, required for clusters.

    Raises:
        UserError: If there is only one document, all documents are equal, all are of one group or cluster, or there are
            fewer distinct ones than folds.
    """
    if isinstance(split, Fold):
        return _draw_fold(split, text_hashes, groups, name=name)
    count = max(1, round(len(text_hashes) * split.fraction))
    if isinstance(split, DocumentClusters):
        assert signatures is not None
        keys = hash_signatures(signatures) if groups is None else groups
        in_validation = draw_groups(find_clusters(signatures, split.threshold, keys), count)
        union = "that form one cluster of similar documents"
    elif groups is not None:
        in_validation, union = draw_groups(groups, count), "of one group"
    else:
        in_validation, union = _draw_by_number(text_hashes, split.fraction), "that are all equal"
    if in_validation is None:
        description = f"{len(text_hashes):,} documents {union}" if len(text_hashes) > 1 else "a single document"
        raise UserError(f"{name} is {description}, which cannot be divided; set data.validation to {{kind: tail}}")
    return in_validation


def _draw_fold(split: Fold, text_hashes: np.ndarray, groups: np.ndarray | None, *, name: str) -> np.ndarray:
    """Return a mask (D,) of the documents of a fold."""
    if groups is None:
        _, firsts, inverse = np.unique(text_hashes, return_index=True, return_inverse=True)
        identities = firsts[inverse]  # unlike hashes of long texts, these do not depend on the tokenizer
        plural, remedy = "documents", REMEDY
    else:
        identities, plural, remedy = groups, "groups", "add documents of other groups"
    selected = find_fold(identities.tolist(), split, name=name, plural=plural, remedy=remedy)
    return np.isin(identities, np.array(list(selected), dtype=identities.dtype))


def _draw_by_number(text_hashes: np.ndarray, fraction: float) -> np.ndarray | None:
    """Return a mask (D,) of the documents to move, or None if all documents are equal."""
    _, firsts, groups, sizes = np.unique(text_hashes, return_index=True, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        return None
    ranks = [hashlib.sha256(str(number).encode()).digest() for number in firsts.tolist()]
    order = sorted(range(len(firsts)), key=ranks.__getitem__)
    left = max(1, round(len(text_hashes) * fraction))
    selected = np.zeros(len(sizes), dtype=bool)
    for group in order[:-1]:  # at least one group stays in the training part
        if sizes[group] <= left:
            selected[group], left = True, left - sizes[group]
        if not left:
            break
    if not selected.any():  # few distinct texts, each repeated many times
        selected[sizes.argmin()] = True
    return selected[groups]


def _copy(ids: np.ndarray, ranges: Any, path: Path) -> None:
    with path.open("wb") as file:
        for start, end in ranges:
            for block in _blocks(ids, start, end):
                file.write(block.tobytes())


def _blocks(ids: np.ndarray, start: int, end: int) -> Iterator[np.ndarray]:
    for first in range(start, end, BLOCK_IDS):
        yield ids[first : min(first + BLOCK_IDS, end)]


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.append(0, np.cumsum(lengths)[:-1]).astype(np.int64)

"""Batches of labeled texts."""

from dataclasses import dataclass

import numpy as np

from tercet.data.corpora.label_corpus import Labelled
from tercet.data.corpora.targets import IGNORED


@dataclass(frozen=True, kw_only=True)
class LabelRows:
    """A batch of labelled texts, padded on the right.

    Attributes:
        tokens: (B, T) int64: bos, the text, eos.
        mask: (B, T) bool, True at real tokens.
        targets: (B,) int64 over texts; over tokens (B, T), IGNORED on all but a word's first piece; of several labels
            (B, L) float32, of numbers (B,) float64.
    """

    tokens: np.ndarray
    mask: np.ndarray
    targets: np.ndarray


def labelled_rows(labelled: Labelled, numbers: np.ndarray, *, max_len: int, bos: int, eos: int, pad: int) -> LabelRows:
    """The texts `numbers` (B,) as a batch, as long as the longest; what is longer than `max_len` is cut before its eos.

    Args:
        bos, eos, pad: begins each text, ends it, and fills it up.
    """
    if max_len < 3:
        raise ValueError(f"max_len={max_len} leaves no room between bos and eos; allow at least 3")
    first = np.asarray(labelled.starts[numbers])[:, None]
    lengths = np.minimum(np.asarray(labelled.starts[numbers + 1])[:, None] - first, max_len - 2)  # (B, 1)
    positions = np.arange(lengths.max(initial=0) + 2)
    mask = positions < lengths + 2  # (B, T)
    inside = (positions > 0) & (positions <= lengths)
    in_ids = (first + positions - 1)[inside]
    tokens = np.full(mask.shape, pad, dtype=np.int64)
    tokens[:, 0] = bos
    tokens[positions == lengths + 1] = eos
    tokens[inside] = labelled.ids[in_ids]
    if labelled.over == "texts":
        return LabelRows(tokens=tokens, mask=mask, targets=labelled.targets(numbers))
    targets = np.full(mask.shape, IGNORED, dtype=np.int64)
    targets[inside] = labelled.labels[in_ids]
    return LabelRows(tokens=tokens, mask=mask, targets=targets)

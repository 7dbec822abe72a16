"""Batches of labeled texts."""

from dataclasses import dataclass

import numpy as np

from tercet.data.corpora.label_corpus import LabeledExamples
from tercet.data.corpora.targets import IGNORE_INDEX
from tercet.data.rows.padding import pad_rows, pad_texts


@dataclass(frozen=True, kw_only=True)
class LabelRows:
    """Batch of labeled texts, padded on the right.

    Attributes:
        tokens: (B, T) int64: bos, the text, eos.
        mask: (B, T) bool, True at real tokens.
        targets: One label per text: (B,) int64 label indices. One label per word: (B, T) int64, IGNORE_INDEX except at
            a word's first token. Several labels per text: (B, L) float32, 0 or 1. Numbers: (B,) float64.
    """

    tokens: np.ndarray
    mask: np.ndarray
    targets: np.ndarray


def label_rows(
    examples: LabeledExamples, numbers: np.ndarray, *, max_len: int, bos: int, eos: int, pad: int
) -> LabelRows:
    """Return the texts `numbers` (B,) as a batch. Longer texts than `max_len` are cut, but end with eos too.

    Args:
        examples: Labeled texts.
        numbers: (B,) numbers of the texts.
        max_len: Maximum tokens per text, including bos and eos.
        bos, eos, pad: Ids of the beginning, the end and the padding.

    Raises:
        ValueError: If `max_len` is below 3.
    """
    tokens, mask = pad_texts(examples.ids, examples.starts, numbers, max_len=max_len, bos=bos, eos=eos, pad=pad)
    if examples.over == "texts":
        return LabelRows(tokens=tokens, mask=mask, targets=examples.targets(numbers))
    labels, _ = pad_rows(examples.labels, examples.starts, numbers, IGNORE_INDEX, max_len - 2)
    return LabelRows(tokens=tokens, mask=mask, targets=np.pad(labels, ((0, 0), (1, 1)), constant_values=IGNORE_INDEX))

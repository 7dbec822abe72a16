"""Batches of labeled texts."""

from dataclasses import dataclass

import numpy as np

from tercet.data.corpora.label_corpus import LabeledExamples
from tercet.data.corpora.targets import IGNORE_INDEX
from tercet.data.rows.padding import pad_rows, pad_texts
from tercet.data.rows.pair_rows import frame_pair


@dataclass(frozen=True, kw_only=True)
class LabelRows:
    """Batch of labeled texts, padded on the right.

    Attributes:
        tokens: (B, T) int64: bos, the text, eos; for a pair see `frame_pair`.
        mask: (B, T) bool, True at real tokens.
        targets: One label per text: (B,) int64 label indices. One label per word: (B, T) int64, IGNORE_INDEX except at
            a word's first token. Several labels per text: (B, L) float32, 0 or 1. Numbers: (B,) float64.
        segments: (B, T) int64, 0 up to the eos of the first text of a pair and 1 after it; None for single texts.
    """

    tokens: np.ndarray
    mask: np.ndarray
    targets: np.ndarray
    segments: np.ndarray | None = None


def label_rows(
    examples: LabeledExamples, numbers: np.ndarray, *, max_len: int, bos: int, eos: int, pad: int
) -> LabelRows:
    """Return the texts `numbers` (B,) as a batch. Longer texts than `max_len` are cut, but end with eos too.

    Args:
        examples: Labeled texts.
        numbers: (B,) numbers of the texts.
        max_len: Maximum tokens per text or pair, including bos and eos.
        bos, eos, pad: Ids of the beginning, the end and the padding.

    Raises:
        ValueError: If `max_len` is below 3, or for pairs below `MIN_PAIR_LEN`.
    """
    if examples.first_lengths is not None:
        return _pair_rows(examples, examples.first_lengths, numbers, max_len=max_len, bos=bos, eos=eos, pad=pad)
    tokens, mask = pad_texts(examples.ids, examples.starts, numbers, max_len=max_len, bos=bos, eos=eos, pad=pad)
    if examples.over == "texts":
        return LabelRows(tokens=tokens, mask=mask, targets=examples.targets(numbers))
    labels, _ = pad_rows(examples.labels, examples.starts, numbers, IGNORE_INDEX, max_len - 2)
    return LabelRows(tokens=tokens, mask=mask, targets=np.pad(labels, ((0, 0), (1, 1)), constant_values=IGNORE_INDEX))


def _pair_rows(
    examples: LabeledExamples,
    first_lengths: np.ndarray,
    numbers: np.ndarray,
    *,
    max_len: int,
    bos: int,
    eos: int,
    pad: int,
) -> LabelRows:
    rows = list[list[int]]()
    second_starts = list[int]()
    for number in numbers.tolist():
        start, end = examples.starts[number], examples.starts[number + 1]
        middle = start + first_lengths[number]
        first, second = (examples.ids[a:b].tolist() for a, b in ((start, middle), (middle, end)))
        row = frame_pair(first, second, max_len=max_len, bos=bos, eos=eos)
        rows.append(row.ids)
        second_starts.append(row.second_start)
    ends = np.cumsum([0, *map(len, rows)])
    tokens, mask = pad_rows(np.concatenate(rows), ends, np.arange(len(rows)), pad, max_len)
    segments = (np.arange(tokens.shape[1]) >= np.array(second_starts)[:, None]).astype(np.int64)
    return LabelRows(tokens=tokens, mask=mask, targets=examples.targets(numbers), segments=segments)

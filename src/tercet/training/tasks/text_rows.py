"""What the tasks on running text share: a text's rows, and which of them a validation takes."""

from math import ceil

import numpy as np

from tercet.data import Corpus, Packed, PackedRows, Padded, PaddedRows, TextSpec
from tercet.data.batching import BATCH_TOKENS, cut_rows
from tercet.training.plan import RowSums


def training_rows(corpus: Corpus, data: TextSpec, length: int) -> PackedRows | PaddedRows:
    """Rows of `length` + 1 tokens."""
    if isinstance(data.rows, Packed):
        return PackedRows(corpus.train, corpus.train_documents, length=length, document_mask=data.rows.document_mask)
    return PaddedRows(
        corpus.train,
        corpus.train_documents,
        length=length,
        side=data.rows.side if isinstance(data.rows, Padded) else "left",
        stride=data.rows.stride,
        pad_id=corpus.tokenizer.pad_id or 0,
        beyond_end=isinstance(data.rows, Padded),
    )


def row_tokens(rows: PackedRows | PaddedRows, width: int) -> RowSums:
    """The real tokens among the first `width` of each row: what the model reads of it."""
    return RowSums(width if isinstance(rows, PackedRows) else rows.count_real(width))


def spread(n_windows: int, length: int, tokens: int | None) -> np.ndarray:
    """Numbers of windows of `length` tokens, as many as make up `tokens`, evenly over all of them."""
    some = n_windows if tokens is None else max(1, min(n_windows, tokens // length))
    return np.linspace(0, n_windows - 1, some).astype(np.int64)


def group_windows(chosen: np.ndarray, length: int) -> list[np.ndarray]:
    """Windows of `length` tokens in batches."""
    return cut_rows(chosen, ceil(len(chosen) / max(1, BATCH_TOKENS // length)))

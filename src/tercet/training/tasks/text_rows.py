"""Rows and validation windows of the tasks on running text."""

from dataclasses import replace
from math import ceil

import numpy as np

from tercet.data import Corpus, Packed, PackedRows, Padded, PaddedRows, TextSpec, TokenRows
from tercet.data.rows.batching import BATCH_TOKENS, cut_rows
from tercet.data.rows.order import Layout
from tercet.data.rows.sharded_rows import MixedRows, ShardedRows
from tercet.data.rows.strands import Strands
from tercet.training.tasks.plan import Plan, RowSums

TrainingRows = PackedRows | PaddedRows | ShardedRows | MixedRows


def training_rows(corpus: Corpus, data: TextSpec, length: int) -> TrainingRows:
    """Return the training rows of a corpus, of `length` + 1 tokens each."""
    if not corpus.folders:
        return _rows(np.asarray(corpus.train), np.asarray(corpus.train_documents), corpus, data, length)
    packed = isinstance(data.rows, Packed)
    rows = [
        ShardedRows(
            folder,
            lambda ids, starts: _rows(ids, starts, corpus, data, length),
            length=length,
            has_documents=data.has_document_mask,
            packed=packed,
        )
        for folder in corpus.folders
    ]
    return rows[0] if len(rows) == 1 else MixedRows(rows, corpus.weights)


def find_strands(corpus: Corpus, data: TextSpec) -> Strands | None:
    """Return the other strand of the rows if `data` requires reverse complements.

    Raises:
        UserError: If the vocabulary does not consist of nucleotides.
    """
    return Strands(corpus.tokenizer) if data.reverse_complement else None


def strand_rows(
    rows: TrainingRows, strands: Strands | None, plan: Plan, numbers: np.ndarray, epochs: np.ndarray, length: int
) -> TokenRows:
    """Return training rows, of which some are replaced by their reverse complements.

    Args:
        rows: All training rows.
        strands: The other strand; None for none.
        plan: Plan of the run.
        numbers: (B,) numbers of the rows.
        epochs: (B,) epoch of each row.
        length: Tokens per row, as in `training_rows`.
    """
    batch = rows.batch(numbers, plan.shifts(epochs, length))
    if strands is None:
        return batch
    chosen = plan.strands(numbers, epochs)
    tokens = strands.reverse(batch.tokens, chosen, mask=batch.mask, documents=batch.documents)
    return replace(batch, tokens=tokens)


def row_tokens(rows: TrainingRows, width: int) -> RowSums:
    """Return the number of real tokens among the first `width` tokens of each row, which are the inputs."""
    if isinstance(rows, PackedRows | MixedRows) or (isinstance(rows, ShardedRows) and rows.packed):
        return RowSums(width)
    return RowSums(rows.count_real(width))


def layout_of(rows: TrainingRows) -> Layout | None:
    """Return the layout that determines the order of rows; None if the order is a permutation of all rows."""
    return rows.layout if isinstance(rows, ShardedRows | MixedRows) else None


def fetch_ahead(rows: TrainingRows, plan: Plan, step: int) -> None:
    """Open in a thread the shards that a step and the following steps read; only for rows in shards."""
    if isinstance(rows, ShardedRows | MixedRows):
        rows.fetch_ahead(plan.rows_before(step), plan.seed)


def _rows(
    ids: np.ndarray, document_starts: np.ndarray, corpus: Corpus, data: TextSpec, length: int
) -> PackedRows | PaddedRows:
    if isinstance(data.rows, Packed):
        return PackedRows(ids, document_starts, length=length, document_mask=data.rows.document_mask)
    return PaddedRows(
        ids,
        document_starts,
        length=length,
        side=data.rows.side if isinstance(data.rows, Padded) else "left",
        stride=data.rows.stride,
        pad_id=corpus.tokenizer.pad_id or 0,
        beyond_end=isinstance(data.rows, Padded),
    )


def spread(n_windows: int, length: int, tokens: int | None) -> np.ndarray:
    """Return the numbers of evenly spread windows with at most `tokens` tokens, but at least one window.

    Args:
        n_windows: Number of all windows.
        length: Tokens per window.
        tokens: Maximum number of tokens; None for all windows.
    """
    n_chosen = n_windows if tokens is None else max(1, min(n_windows, tokens // length))
    return np.linspace(0, n_windows - 1, n_chosen).astype(np.int64)


def group_windows(windows: np.ndarray, length: int) -> list[np.ndarray]:
    """Return the numbers of windows in batches of at most `BATCH_TOKENS` tokens, but at least one window.

    Args:
        windows: Numbers of the windows.
        length: Tokens per window.
    """
    return cut_rows(windows, ceil(len(windows) / max(1, BATCH_TOKENS // length)))

"""Rows of `length` + 1 tokens from an array of ids: `length` inputs, and the next token of each as its target.

For a masked language model all tokens of a row are inputs, so the `length` of its rows is one less than its context.
Every batch is read by one indexing operation, with a (B, length + 1) matrix of positions in the memory-mapped ids.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tercet.config import UserError

COUNT_BLOCK_ROWS = 1 << 20  # rows counted at once


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Batch of rows.

    Attributes:
        tokens: (B, length + 1) int64. For a language model, the inputs are [:, :-1] and the targets [:, 1:]. Batches of
            `Blocks` have `length` columns.
        mask: Bool of the shape of `tokens`, or None if all are True. True at real tokens; for `Windows` and
            conversations, only at targets to score or learn.
        documents: Int64 of the shape of `tokens`: number of each token's document, or None if no attention mask depends
            on it.
    """

    tokens: np.ndarray
    mask: np.ndarray | None = None
    documents: np.ndarray | None = None


class PackedRows:
    """Rows cut from all documents concatenated.

    Each row shares one token with the next, so that every target is used. Each epoch moves the cuts by a `shift`. The
    number of rows is the same in every epoch, so fewer than 2 · `length` tokens at the two ends are not used in an
    epoch, and the shift changes which ones.
    """

    def __init__(
        self, ids: np.ndarray, document_starts: np.ndarray, *, length: int, document_mask: bool = False
    ) -> None:
        """Initialize the rows.

        Args:
            ids: (N,) ids of all documents.
            document_starts: (D,) position of the first token of each document.
            length: Number of inputs per row.
            document_mask: If True, batches contain the number of each token's document.

        Raises:
            ValueError: If `length` is below 1.
            UserError: If `ids` is too short for a single row.
        """
        _check_length(length)
        if len(ids) <= length:
            raise UserError(
                f"the data has {len(ids)} tokens, fewer than the {length + 1} that a context of {length} requires; "
                f"use more text or reduce model.max_len"
            )
        self._ids, self._starts = np.asarray(ids), document_starts
        self._length, self._document_mask = length, document_mask
        self._n_rows = self.count(len(ids), length)

    @staticmethod
    def count(tokens: int, length: int) -> int:
        """Return the number of rows of `tokens` tokens, which must be more than `length`."""
        return max(1, tokens // length - 1)

    def __len__(self) -> int:
        return self._n_rows

    def batch(self, numbers: np.ndarray, shift: int | np.ndarray = 0) -> TokenRows:
        """Return rows `numbers` (B,), with cuts moved by `shift` tokens: one number for all rows, or one for each."""
        n_offsets = len(self._ids) - self._n_rows * self._length  # 1 for tiny data, up to 2 * length - 1
        first = np.asarray(shift) % n_offsets + numbers * self._length
        positions = first[:, None] + np.arange(self._length + 1)
        documents = _document_numbers(self._starts, positions) if self._document_mask else None
        return TokenRows(tokens=self._ids[positions].astype(np.int64), documents=documents)


class PaddedRows:
    """Windows of up to `length` + 1 tokens over each document separately, `stride` tokens apart.

    With `side` "left", windows go from the end of the document to its start. The first window contains only the last
    two tokens of the document, and the last window, with a stride of 1, only the first two. Positions before and after
    the document are padding. Thus the model learns to start with little context: with a stride of 1, each token is
    predicted from 1, 2, ... up to `length` tokens before it, as in generation.

    With `side` "right", windows start at the document's first token, `stride` tokens later, and so on until one reaches
    the end. Positions after the end are padding.
    """

    def __init__(
        self,
        ids: np.ndarray,
        document_starts: np.ndarray,
        *,
        length: int,
        side: Literal["left", "right"] = "left",
        stride: int = 1,
        pad_id: int = 0,
        beyond_end: bool = True,
    ) -> None:
        """Initialize the rows.

        Args:
            ids: (N,) ids of all documents.
            document_starts: (D,) position of the first token of each document.
            length: Number of inputs per row.
            side: Side of the padding; see the class.
            stride: Distance between windows in tokens.
            pad_id: Id of padding.
            beyond_end: If False, `side` "left" omits the windows that extend beyond the end of the document.

        Raises:
            ValueError: If `length` or `stride` is below 1.
            UserError: If no document has two tokens, or `stride` exceeds `length`, so that targets would be skipped.
        """
        _check_length(length)
        if stride < 1:
            raise ValueError(f"stride must be at least 1, got {stride}")
        if stride > length:
            raise UserError(
                f"rows {stride} tokens apart skip tokens with a context of {length}; "
                f"set data.rows.stride to at most {length}"
            )
        self._ids, self._starts = np.asarray(ids), document_starts
        self._ends = np.append(document_starts[1:], len(ids))
        self._length, self._side, self._stride, self._pad_id = length, side, stride, pad_id
        targets = self._ends - self._starts - 1
        self._overhang = length - 1 if beyond_end else 0
        beyond_first = targets - 1 + self._overhang if side == "left" else np.maximum(targets - length, 0)
        n_windows = np.where(targets > 0, 1 + _ceil_div(beyond_first, stride, up=side == "right"), 0)
        self._first_row = np.append(0, np.cumsum(n_windows))  # first row of each document, and the end
        if len(self) == 0:
            raise UserError("no document has two tokens, so there is nothing to predict; use longer documents")

    def __len__(self) -> int:
        return int(self._first_row[-1])

    def batch(self, numbers: np.ndarray, shift: int | np.ndarray = 0) -> TokenRows:
        """Return rows `numbers` (B,). `shift` has no effect: windows are the same in every epoch."""
        start, end, first = self._bounds(numbers)
        positions = first[:, None] + np.arange(self._length + 1)
        mask = (positions >= start[:, None]) & (positions < end[:, None])
        tokens = self._ids[np.where(mask, positions, 0)].astype(np.int64)
        return TokenRows(tokens=np.where(mask, tokens, self._pad_id), mask=mask)

    def count_real(self, width: int) -> np.ndarray:
        """Return, for each row, how many of its first `width` tokens are real, (rows,) int32."""
        counts = np.empty(len(self), np.int32)
        for row in range(0, len(self), COUNT_BLOCK_ROWS):
            numbers = np.arange(row, min(row + COUNT_BLOCK_ROWS, len(self)))
            start, end, first = self._bounds(numbers)
            counts[numbers] = np.maximum(0, np.minimum(end, first + width) - np.maximum(start, first))
        return counts

    def _bounds(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the start and end of the document of each row (B,), and the start of the row, which may be earlier."""
        document = np.searchsorted(self._first_row, numbers, side="right") - 1
        offset = (numbers - self._first_row[document]) * self._stride
        start, end = self._starts[document], self._ends[document]
        return start, end, end - 1 - self._length + self._overhang - offset if self._side == "left" else start + offset


class Windows:
    """Evaluation windows that score every target of `ids` exactly once, also in the last window, which may be partial.

    If `stride` < `length`, windows overlap, and a target is scored in the first window that contains it. From the
    second window on, each target then has at least `length` - `stride` + 1 tokens of context. In the batches, `mask` is
    True at the targets to score. It is False after the end (where tokens are 0) and at targets scored before. The first
    column of a window is never a target.
    """

    def __init__(
        self,
        ids: np.ndarray,
        length: int,
        stride: int | None = None,
        *,
        document_starts: np.ndarray | None = None,
        whole_documents: bool = False,
    ) -> None:
        """Initialize the windows.

        Args:
            ids: (N,) ids of the text.
            length: Number of inputs per window.
            stride: Distance between windows in tokens (default: `length`).
            document_starts: (D,) start of each document. If set, batches contain the number of each token's document.
            whole_documents: If True, a document that fits into a window is not cut: the next window starts at its
                first token, which is then not scored. Has no effect without `document_starts`.

        Raises:
            ValueError: If `length` is below 1, or `stride` is not from 1 to `length`.
            UserError: If there are fewer than two ids.
        """
        _check_length(length)
        if stride is not None and not 1 <= stride <= length:
            raise ValueError(f"stride={stride} must be from 1 to length={length}, or targets would be skipped")
        if len(ids) < 2:
            raise UserError(f"the data has {len(ids)} tokens, so there is nothing to predict; use more text")
        self._ids, self._starts = np.asarray(ids), document_starts
        self._length = length
        starts = document_starts if whole_documents else None
        self._first, self._ends = _cut_windows(len(ids), length, stride or length, starts)

    def __len__(self) -> int:
        return len(self._first)

    def batch(self, numbers: np.ndarray) -> TokenRows:
        """Return windows `numbers` (B,), numbered from the start of the ids."""
        positions = self._first[numbers][:, None] + np.arange(self._length + 1)
        real = positions < self._ends[numbers][:, None]
        scored_end = np.where(numbers > 0, self._ends[numbers - 1] - 1, 0)
        tokens = np.where(real, self._ids[np.where(real, positions, 0)].astype(np.int64), 0)
        documents = None if self._starts is None else _document_numbers(self._starts, positions)
        return TokenRows(tokens=tokens, mask=real & (positions > scored_end[:, None]), documents=documents)


class Blocks:
    """Consecutive rows of `length` tokens that cover `ids`; the last row is padded.

    They are used to evaluate masked language models, for which all tokens are inputs.
    """

    def __init__(
        self, ids: np.ndarray, length: int, *, document_starts: np.ndarray | None = None, pad_id: int = 0
    ) -> None:
        """Initialize the rows.

        Args:
            ids: (N,) ids of the text.
            length: Number of tokens per row.
            document_starts: (D,) start of each document. If set, batches contain the number of each token's document.
            pad_id: Id of padding.

        Raises:
            ValueError: If `length` is below 1.
            UserError: If there are no ids.
        """
        _check_length(length)
        if not len(ids):
            raise UserError("the data has no tokens, so there is nothing to predict; use more text")
        self._ids, self._starts, self._length, self._pad_id = np.asarray(ids), document_starts, length, pad_id

    def __len__(self) -> int:
        return -(-len(self._ids) // self._length)

    def batch(self, numbers: np.ndarray) -> TokenRows:
        """Return rows `numbers` (B,), numbered from the start of the ids."""
        positions = (numbers * self._length)[:, None] + np.arange(self._length)
        real = positions < len(self._ids)
        tokens = np.where(real, self._ids[np.where(real, positions, 0)].astype(np.int64), self._pad_id)
        documents = None if self._starts is None else _document_numbers(self._starts, positions)
        return TokenRows(tokens=tokens, mask=None if real.all() else real, documents=documents)


def _cut_windows(
    n_ids: int, length: int, stride: int, document_starts: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of each window, and the end of the tokens that it contains."""
    if document_starts is None:
        first = np.arange(1 + -(-max(0, n_ids - 1 - length) // stride), dtype=np.int64) * stride
        return first, np.minimum(first + length + 1, n_ids)
    starts, ends, start = list[int](), list[int](), 0
    while not ends or ends[-1] < n_ids:
        end = min(start + length + 1, n_ids)
        last = int(document_starts[np.searchsorted(document_starts, end, side="right") - 1])
        fits = end < n_ids and last > start  # a document ends in this window, so the next window starts after it
        starts.append(start)
        ends.append(last if fits else end)
        start = last if fits else start + stride
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)


def _document_numbers(starts: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return np.searchsorted(starts, positions, side="right") - 1


def _ceil_div(number: np.ndarray, by: int, *, up: bool) -> np.ndarray:
    return -(-number // by) if up else number // by


def _check_length(length: int) -> None:
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")

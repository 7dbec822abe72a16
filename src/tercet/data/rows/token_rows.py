"""Rows of `length` + 1 tokens out of one long array of ids: `length` inputs, and each one's next token as its target.

A model that fills masks takes all of a row's tokens as inputs, so its rows are made with a `length` one less than its
context. Every batch is one gather: a (B, T+1) matrix of positions, taken from the memory-mapped ids at once.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tercet.config import UserError

COUNT_BLOCK_ROWS = 1 << 20  # rows


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """A batch of rows.

    Attributes:
        tokens: (B, length + 1) int64; to a language model the inputs are [:, :-1], the targets [:, 1:]. `Blocks` have
            `length` columns.
        mask: (B, length + 1) bool, or None where all would be True. True is a real token; for `Windows`, one to score.
        documents: (B, length + 1) int64 number of each token's document, or None where rows do not mask them.
    """

    tokens: np.ndarray
    mask: np.ndarray | None = None
    documents: np.ndarray | None = None


class PackedRows:
    """All documents one after another, in rows that share one token with the next, so that every target is seen.

    Each epoch moves the cuts by a `shift`. The number of rows stays the same, which leaves fewer than 2 · `length`
    tokens at the two ends out of an epoch, never the same ones.
    """

    def __init__(
        self, ids: np.ndarray, document_starts: np.ndarray, *, length: int, document_mask: bool = False
    ) -> None:
        """`ids` (N,) and the position of the first token of each document in it.

        Raises:
            UserError: where `ids` is too short for a single row.
        """
        _check_length(length)
        if len(ids) <= length:
            raise UserError(
                f"the data has {len(ids)} tokens, fewer than the {length + 1} that a context of {length} needs; "
                f"give more text or set model.max_len smaller"
            )
        self._ids, self._starts = np.asarray(ids), document_starts
        self._length, self._document_mask = length, document_mask
        self._n_rows = self.count(len(ids), length)

    @staticmethod
    def count(tokens: int, length: int) -> int:
        """How many rows there are of so many tokens, which are more than `length`."""
        return max(1, tokens // length - 1)

    def __len__(self) -> int:
        return self._n_rows

    def batch(self, numbers: np.ndarray, shift: int | np.ndarray = 0) -> TokenRows:
        """Rows `numbers` (B,), all cuts moved by `shift` tokens (one for all, or one for each row)."""
        n_offsets = len(self._ids) - self._n_rows * self._length  # from 1 in tiny data to 2 * length - 1
        first = np.asarray(shift) % n_offsets + numbers * self._length
        positions = first[:, None] + np.arange(self._length + 1)
        documents = _document_numbers(self._starts, positions) if self._document_mask else None
        return TokenRows(tokens=self._ids[positions].astype(np.int64), documents=documents)


class PaddedRows:
    """Each document by itself, in windows of up to `length` + 1 tokens, `stride` apart.

    "left": windows slide over the whole document, from the one that holds its last two tokens only back to the one that
    holds its first two, padded on the side that sticks out. So the model learns to begin with little, and each token
    is predicted from 1, 2, ... and `length` tokens before it (with a stride of 1), as in generation.
    "right": windows start at the document's first token, `stride` after it, and so on until one reaches the end; what
    is missing after the end is padded.
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
        """`ids` (N,) and the position of the first token of each document in it.

        With `beyond_end` false, "left" leaves out the windows that stick out at the end.

        Raises:
            UserError: where no document has two tokens, or `stride` leaps over some.
        """
        _check_length(length)
        if stride < 1:
            raise ValueError(f"stride must be at least 1, got {stride}")
        if stride > length:
            raise UserError(
                f"rows {stride} tokens apart leave tokens out of a context of {length}; "
                f"set data.rows.stride to at most {length}"
            )
        self._ids, self._starts = np.asarray(ids), document_starts
        self._ends = np.append(document_starts[1:], len(ids))
        self._length, self._side, self._stride, self._pad_id = length, side, stride, pad_id
        targets = self._ends - self._starts - 1
        self._overhang = length - 1 if beyond_end else 0
        beyond_first = targets - 1 + self._overhang if side == "left" else np.maximum(targets - length, 0)
        n_windows = np.where(targets > 0, 1 + _ceil_div(beyond_first, stride, up=side == "right"), 0)
        self._first_row = np.append(0, np.cumsum(n_windows))  # of each document
        if len(self) == 0:
            raise UserError("no document has two tokens, so there is nothing to predict; give longer documents")

    def __len__(self) -> int:
        return int(self._first_row[-1])

    def batch(self, numbers: np.ndarray, shift: int | np.ndarray = 0) -> TokenRows:
        """Rows `numbers` (B,). Windows are tied to their documents: `shift` moves nothing."""
        start, end, first = self._bounds(numbers)
        positions = first[:, None] + np.arange(self._length + 1)
        mask = (positions >= start[:, None]) & (positions < end[:, None])
        tokens = self._ids[np.where(mask, positions, 0)].astype(np.int64)
        return TokenRows(tokens=np.where(mask, tokens, self._pad_id), mask=mask)

    def count_real(self, width: int) -> np.ndarray:
        """Of each row (rows,) how many of its first `width` tokens are real, int32."""
        counts = np.empty(len(self), np.int32)
        for row in range(0, len(self), COUNT_BLOCK_ROWS):
            numbers = np.arange(row, min(row + COUNT_BLOCK_ROWS, len(self)))
            start, end, first = self._bounds(numbers)
            counts[numbers] = np.maximum(0, np.minimum(end, first + width) - np.maximum(start, first))
        return counts

    def _bounds(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of rows (B,) where their document starts and ends, and where they begin, be it before its start."""
        document = np.searchsorted(self._first_row, numbers, side="right") - 1
        offset = (numbers - self._first_row[document]) * self._stride
        start, end = self._starts[document], self._ends[document]
        return start, end, end - 1 - self._length + self._overhang - offset if self._side == "left" else start + offset


class Windows:
    """Windows for evaluation: every target of `ids` is scored exactly once, those of the last, partial window too.

    With `stride` < `length` windows overlap, and a target is scored in the first window that holds it: from the second
    window on each target then sees at least `length` - `stride` tokens. In the batches `mask` marks the *targets to
    score*, so its first column is False, as is what lies beyond the end (token 0) and what an earlier window scored.
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
        """`ids` (N,); with `document_starts` the batches number the documents.

        With `whole_documents` no window cuts a document that fits into one, so that each is read from its first token.
        """
        _check_length(length)
        if stride is not None and not 1 <= stride <= length:
            raise ValueError(f"stride={stride} must be from 1 to length={length}, or targets would be left out")
        if len(ids) < 2:
            raise UserError(f"the data has {len(ids)} tokens, so there is nothing to predict; give more text")
        self._ids, self._starts = np.asarray(ids), document_starts
        self._length = length
        starts = document_starts if whole_documents else None
        self._first, self._ends = _cut_windows(len(ids), length, stride or length, starts)

    def __len__(self) -> int:
        return len(self._first)

    def batch(self, numbers: np.ndarray) -> TokenRows:
        """Windows `numbers` (B,), counted from the start of the ids."""
        positions = self._first[numbers][:, None] + np.arange(self._length + 1)
        real = positions < self._ends[numbers][:, None]
        scored_end = np.where(numbers > 0, self._ends[numbers - 1] - 1, 0)
        tokens = np.where(real, self._ids[np.where(real, positions, 0)].astype(np.int64), 0)
        documents = None if self._starts is None else _document_numbers(self._starts, positions)
        return TokenRows(tokens=tokens, mask=real & (positions > scored_end[:, None]), documents=documents)


class Blocks:
    """`ids` cut side by side into rows of `length` tokens, every token in one of them; the last row is padded.

    For evaluating a model that fills masks, to which all tokens are inputs.
    """

    def __init__(
        self, ids: np.ndarray, length: int, *, document_starts: np.ndarray | None = None, pad_id: int = 0
    ) -> None:
        """`ids` (N,); with `document_starts` the batches number the documents."""
        _check_length(length)
        if not len(ids):
            raise UserError("the data has no tokens, so there is nothing to predict; give more text")
        self._ids, self._starts, self._length, self._pad_id = np.asarray(ids), document_starts, length, pad_id

    def __len__(self) -> int:
        return -(-len(self._ids) // self._length)

    def batch(self, numbers: np.ndarray) -> TokenRows:
        """Rows `numbers` (B,), counted from the start of the ids."""
        positions = (numbers * self._length)[:, None] + np.arange(self._length)
        real = positions < len(self._ids)
        tokens = np.where(real, self._ids[np.where(real, positions, 0)].astype(np.int64), self._pad_id)
        documents = None if self._starts is None else _document_numbers(self._starts, positions)
        return TokenRows(tokens=tokens, mask=None if real.all() else real, documents=documents)


def _cut_windows(
    n_ids: int, length: int, stride: int, document_starts: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Where each window begins, and the end of what it scores."""
    if document_starts is None:
        first = np.arange(1 + -(-max(0, n_ids - 1 - length) // stride), dtype=np.int64) * stride
        return first, np.minimum(first + length + 1, n_ids)
    starts, ends, start = list[int](), list[int](), 0
    while not ends or ends[-1] < n_ids:
        end = min(start + length + 1, n_ids)
        last = int(document_starts[np.searchsorted(document_starts, end, side="right") - 1])
        fits = end < n_ids and last > start  # one document ends here at least, so the last begins the next window
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

"""The readers of rows equal their brute-force definitions, at odd sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import PackedRows, PaddedRows, Windows
from tercet.data.rows.token_rows import Blocks

DOCUMENTS = st.lists(st.integers(1, 17), min_size=1, max_size=6)


def corpus(lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids 100, 101, ... in documents of these lengths."""
    starts = np.append(0, np.cumsum(lengths)[:-1]).astype(np.int64)
    return np.arange(100, 100 + sum(lengths), dtype=np.uint16), starts


def test_packed_rows_overlap_by_one() -> None:
    rows = PackedRows(*corpus([29]), length=7)
    assert len(rows) == 3
    batch = rows.batch(np.array([0, 2]), shift=3)
    assert batch.tokens.tolist() == [list(range(103, 111)), list(range(117, 125))]
    assert batch.tokens.dtype == np.int64
    assert batch.mask is None
    assert batch.documents is None


@given(total=st.integers(2, 60), length=st.integers(1, 11), shift=st.integers(0, 10))
def test_packed_rows_stay_inside_and_leave_little(total: int, length: int, shift: int) -> None:
    if total <= length:
        with pytest.raises(UserError, match=f"{total} tokens, fewer than the {length + 1} that a context of {length}"):
            PackedRows(*corpus([total]), length=length)
        return
    rows = PackedRows(*corpus([total]), length=length)
    tokens = rows.batch(np.arange(len(rows)), shift=shift % length).tokens
    targets = tokens[:, 1:].ravel()
    assert targets.tolist() == list(range(targets[0], targets[0] + len(targets)))  # consecutive and without duplicates
    assert total - len(targets) < 2 * length + 1
    assert tokens.min() >= 100
    assert tokens.max() < 100 + total


def test_each_row_can_have_its_own_shift() -> None:
    rows = PackedRows(*corpus([29]), length=7)
    tokens = rows.batch(np.array([1, 1]), shift=np.array([0, 6])).tokens
    assert tokens[:, 0].tolist() == [107, 113]


@given(lengths=DOCUMENTS, length=st.integers(1, 5))
def test_packed_rows_have_document_ids(lengths: list[int], length: int) -> None:
    ids, starts = corpus(lengths)
    if len(ids) <= length:
        return
    rows = PackedRows(ids, starts, length=length, document_mask=True)
    batch = rows.batch(np.arange(len(rows)))
    owner = np.repeat(np.arange(len(lengths)), lengths)
    assert batch.documents is not None
    np.testing.assert_array_equal(batch.documents, owner[batch.tokens - 100])


def padded_by_hand(document: list[int], length: int, side: str, stride: int) -> list[list[int]]:
    rows = list[list[int]]()
    if side == "left":
        for last in range(len(document) + length - 2, 0, -stride):
            row = [0] * max(0, length - last) + document[max(0, last - length) : last + 1]
            if len(document) > 1:
                rows.append(row + [0] * (length + 1 - len(row)))
        return rows
    for first in range(0, len(document), stride):
        row = document[first : first + length + 1]
        if len(document) > 1:
            rows.append(row + [0] * (length + 1 - len(row)))
        if first + length + 1 >= len(document):
            break
    return rows


@pytest.mark.parametrize("side", ["left", "right"])
@given(lengths=DOCUMENTS, length=st.integers(1, 7), stride=st.integers(1, 5))
def test_padded_rows_by_hand(side: str, lengths: list[int], length: int, stride: int) -> None:
    ids, starts = corpus(lengths)
    stride = min(stride, length)
    documents = [ids[start : start + n].tolist() for start, n in zip(starts, lengths, strict=True)]
    expected = [row for document in documents for row in padded_by_hand(document, length, side, stride)]
    if not expected:
        with pytest.raises(UserError, match="no document has two tokens"):
            PaddedRows(ids, starts, length=length, side=side, stride=stride)  # pyright: ignore[reportArgumentType]
        return
    rows = PaddedRows(ids, starts, length=length, side=side, stride=stride, pad_id=0)  # pyright: ignore[reportArgumentType]
    assert len(rows) == len(expected)
    batch = rows.batch(np.arange(len(rows)))
    np.testing.assert_array_equal(batch.tokens, expected)
    np.testing.assert_array_equal(batch.mask, np.array(expected) >= 100)
    np.testing.assert_array_equal(rows.batch(np.array([len(rows) - 1])).tokens, expected[-1:])


def test_padding_has_the_pad_id() -> None:
    batch = PaddedRows(*corpus([2]), length=3, side="left", pad_id=9).batch(np.arange(3))
    assert batch.tokens.tolist() == [[100, 101, 9, 9], [9, 100, 101, 9], [9, 9, 100, 101]]


@given(total=st.integers(2, 60), length=st.integers(1, 11), data=st.data())
def test_windows_score_every_target_once(total: int, length: int, data: st.DataObject) -> None:
    stride = data.draw(st.one_of(st.none(), st.integers(1, length)))
    ids, _ = corpus([total])
    windows = Windows(ids, length, stride)
    batch = windows.batch(np.arange(len(windows)))
    assert batch.mask is not None
    targets = batch.tokens[batch.mask]
    assert sorted(targets.tolist()) == list(range(101, 100 + total))
    assert batch.mask.any(axis=1).all(), "a window without a target to score"
    assert not batch.mask[:, 0].any()
    context_lengths = np.arange(length + 1)[None].repeat(len(windows), 0)[1:][batch.mask[1:]]
    assert (context_lengths > length - (stride or length)).all(), "a target after the first window sees too little"


def test_windows_distinguish_documents() -> None:
    ids, starts = corpus([3, 5])
    batch = Windows(ids, 5, document_starts=starts).batch(np.array([0]))
    assert batch.documents is not None
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, 1]]


def test_invalid_arguments_are_rejected() -> None:
    ids, starts = corpus([9])
    with pytest.raises(ValueError, match="stride=6 must be from 1 to length=5"):
        Windows(ids, 5, 6)
    with pytest.raises(ValueError, match="got 0"):
        PackedRows(ids, starts, length=0)
    with pytest.raises(ValueError, match="got 0"):
        PaddedRows(ids, starts, length=3, stride=0)
    with pytest.raises(UserError, match=r"6 tokens apart skip tokens with a context of 5; set data\.rows\.stride"):
        PaddedRows(ids, starts, length=5, stride=6)
    with pytest.raises(UserError, match="has 1 tokens"):
        Windows(ids[:1], 5)


@given(lengths=DOCUMENTS, length=st.integers(1, 11))
def test_blocks_hold_every_token_once(lengths: list[int], length: int) -> None:
    ids, starts = corpus(lengths)
    blocks = Blocks(ids, length, document_starts=starts, pad_id=7)
    batch = blocks.batch(np.arange(len(blocks)))
    assert batch.tokens.shape == (len(blocks), length)
    real = np.ones(batch.tokens.shape, bool) if batch.mask is None else batch.mask
    assert batch.tokens[real].tolist() == ids.tolist()
    assert (batch.tokens[~real] == 7).all()
    assert (~real).sum() < length
    assert batch.documents is not None
    np.testing.assert_array_equal(batch.documents[real], np.repeat(np.arange(len(lengths)), lengths))
    assert blocks.batch(np.array([0])).documents is not None
    assert Blocks(ids, length).batch(np.array([0])).documents is None
    assert (batch.mask is None) == (len(ids) % length == 0)


def test_empty_corpus_cannot_be_cut_into_blocks() -> None:
    with pytest.raises(UserError, match="no tokens"):
        Blocks(np.empty(0, np.uint16), 3)


@given(lengths=DOCUMENTS, length=st.integers(1, 6))
def test_sliding_windows_equal_those_of_the_left_padded_text(lengths: list[int], length: int) -> None:
    """With a stride of 1, these are exactly the windows of the padded document that have a target."""
    ids, starts = corpus(lengths)
    if max(lengths) < 2:
        with pytest.raises(UserError, match="nothing to predict"):
            PaddedRows(ids, starts, length=length, beyond_end=False)
        return
    rows = PaddedRows(ids, starts, length=length, pad_id=7, beyond_end=False)
    batch = rows.batch(np.arange(len(rows)))
    expected_rows = []
    for start, size in zip(starts, lengths, strict=True):
        padded_ids = [7] * length + ids[start : start + size].tolist()
        windows = [padded_ids[first : first + length + 1] for first in range(size)]
        expected_rows += [window for window in windows if sum(token != 7 for token in window) > 1]
    assert sorted(map(tuple, batch.tokens.tolist())) == sorted(map(tuple, expected_rows))
    assert batch.mask is not None
    assert (batch.mask == (batch.tokens != 7)).all()

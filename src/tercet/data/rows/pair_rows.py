"""Rows of two texts, such as a query and a document: bos, the first text, eos, the second text, eos."""

from collections.abc import Sequence
from typing import NamedTuple

PAIR_FRAME = 3  # special tokens of a row: bos, and eos after each text
MIN_PAIR_LEN = PAIR_FRAME + 2  # minimum tokens of a row, with one token of each text


class PairRow(NamedTuple):
    """Row of two texts.

    Attributes:
        ids: Token ids of the row.
        second_start: Position of the second text. This and all later tokens are those of the second segment.
        is_cut: True if a text was truncated.
    """

    ids: list[int]
    second_start: int
    is_cut: bool


def frame_pair(first: Sequence[int], second: Sequence[int], *, max_len: int, bos: int, eos: int) -> PairRow:
    """Return the row of two texts. If it has more than `max_len` tokens, the longer text is truncated.

    If both are longer than half of the row, both are truncated to that half, so a short query remains complete. An odd
    token is left to the longer text. This is the truncation `longest_first` of `transformers`.

    Args:
        first, second: Ids of the texts, without special tokens.
        max_len: Maximum number of tokens of the row.
        bos, eos: Ids of the beginning and the end.

    Raises:
        ValueError: If `max_len` is below `MIN_PAIR_LEN`.
    """
    if max_len < MIN_PAIR_LEN:
        raise ValueError(f"max_len={max_len} leaves no room for two texts; allow at least {MIN_PAIR_LEN}")
    room = max_len - PAIR_FRAME
    n_first, n_second = len(first), len(second)
    is_cut = n_first + n_second > room
    if is_cut and n_first <= n_second:
        n_first = min(n_first, room // 2)
        n_second = room - n_first
    elif is_cut:
        n_second = min(n_second, room // 2)
        n_first = room - n_second
    return PairRow([bos, *first[:n_first], eos, *second[:n_second], eos], n_first + 2, is_cut)

"""Rows of two texts, such as a query and a document: bos, the first text, eos, the second text, eos."""

from collections.abc import Sequence
from typing import NamedTuple

MIN_PAIR_LEN = 5  # minimum tokens of a row: one token of each text and three special tokens


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
    """Return the row of two texts. If it has more than `max_len` tokens, the texts are truncated.

    The second text is truncated first, down to half of the row, so that a query remains complete. Only if that is not
    enough, the first text is truncated too.

    Args:
        first, second: Ids of the texts, without special tokens.
        max_len: Maximum number of tokens of the row.
        bos, eos: Ids of the beginning and the end.

    Raises:
        ValueError: If `max_len` is below `MIN_PAIR_LEN`.
    """
    if max_len < MIN_PAIR_LEN:
        raise ValueError(f"max_len={max_len} leaves no room for two texts; allow at least {MIN_PAIR_LEN}")
    room = max_len - 3
    n_second = min(len(second), max(room - len(first), room // 2))
    n_first = min(len(first), room - n_second)
    is_cut = n_first < len(first) or n_second < len(second)
    return PairRow([bos, *first[:n_first], eos, *second[:n_second], eos], n_first + 2, is_cut)

"""Padding of rows of different length."""

import numpy as np


def pad_rows(
    values: np.ndarray, starts: np.ndarray, numbers: np.ndarray, pad: int, max_len: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows `numbers` (B,) padded on the right, (B, L) int64, and their mask (B, L), False at padding.

    Args:
        values: (M,) values of all rows, concatenated.
        starts: (N + 1,) position of the start of each row, and of the end of the last one.
        numbers: (B,) numbers of the rows.
        pad: Padding value.
        max_len: Maximum length; longer rows are cut.
    """
    first = np.asarray(starts[numbers])[:, None]
    lengths = np.minimum(np.asarray(starts[numbers + 1])[:, None] - first, max_len)
    positions = np.arange(lengths.max(initial=0))
    mask = positions < lengths  # (B, L)
    rows = np.full(mask.shape, pad, dtype=np.int64)
    rows[mask] = values[(first + positions)[mask]]
    return rows, mask


def pad_texts(
    ids: np.ndarray, starts: np.ndarray, numbers: np.ndarray, *, max_len: int, bos: int, eos: int, pad: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the texts `numbers` (B,) from bos to eos, (B, T) int64, and their mask (B, T), False at padding.

    Args:
        ids, starts, numbers: As `values`, `starts` and `numbers` of `pad_rows`.
        max_len: Maximum tokens per text, including bos and eos. Longer texts are cut, but end with eos too.
        bos, eos, pad: Ids of the beginning, the end and the padding.

    Raises:
        ValueError: If `max_len` is below 3.
    """
    if max_len < 3:
        raise ValueError(f"max_len={max_len} leaves no room between bos and eos; allow at least 3")
    text, text_mask = pad_rows(ids, starts, numbers, pad, max_len - 2)
    tokens = np.pad(text, ((0, 0), (1, 1)), constant_values=pad)  # (B, T)
    tokens[:, 0] = bos
    tokens[np.arange(len(tokens)), text_mask.sum(axis=1) + 1] = eos
    return tokens, np.pad(text_mask, ((0, 0), (2, 0)), constant_values=True)

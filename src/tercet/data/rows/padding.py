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

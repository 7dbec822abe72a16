"""Rows of unequal length as one array."""

import numpy as np


def pad_rows(
    values: np.ndarray, starts: np.ndarray, numbers: np.ndarray, pad: int, max_len: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows `numbers` (B,) as one array (B, L) int64, padded on the right, and a mask that is True at values.

    Args:
        values: The values of all rows, one row after another.
        starts: Position at which each row starts, and the end.
        pad: Value that fills up short rows.
        max_len: Maximum length; longer rows are cut.
    """
    first = np.asarray(starts[numbers])[:, None]
    lengths = np.minimum(np.asarray(starts[numbers + 1])[:, None] - first, max_len)
    positions = np.arange(lengths.max(initial=0))
    mask = positions < lengths  # (B, L)
    rows = np.full(mask.shape, pad, dtype=np.int64)
    rows[mask] = values[(first + positions)[mask]]
    return rows, mask

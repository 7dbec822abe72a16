"""Read headers of NumPy files: at most 10,000 bytes (NumPy's own limit), parsed as literals and never executed."""

import warnings
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np


class ArrayHeader(NamedTuple):
    """The data type, shape and memory order of an array."""

    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]
    fortran_order: bool


def read_array_header(file: IO[bytes]) -> ArrayHeader:
    """Read the header at the current position and leave the file at the first byte of the array.

    Raises:
        ValueError: If there is no valid header.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings(action="ignore"):  # about headers written by Python 2
            shape, fortran_order, dtype = read(file)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError, TokenError) as error:
        raise ValueError("not a NumPy array") from error
    if any(size < 0 for size in shape):
        raise ValueError("an array of negative size")
    return ArrayHeader(dtype, shape, fortran_order)

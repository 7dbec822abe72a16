"""The header of a NumPy array in a file, read within NumPy's own bound of 10,000 bytes, as a literal and never code."""

import warnings
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np


class ArrayHeader(NamedTuple):
    """What an array is whose numbers follow."""

    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]
    fortran_order: bool


def read_array_header(file: IO[bytes]) -> ArrayHeader:
    """That which begins here; the file then stands at the array's first byte.

    Raises:
        ValueError: where it is none.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings(action="ignore"):  # of Python 2's headers
            shape, fortran_order, dtype = read(file)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError, TokenError) as error:
        raise ValueError("not a NumPy array") from error
    if any(size < 0 for size in shape):
        raise ValueError("an array of negative size")
    return ArrayHeader(dtype, shape, fortran_order)

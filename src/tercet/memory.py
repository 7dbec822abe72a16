"""Memory that is freed is kept for what comes next, where the C library is glibc.

By itself glibc hands large blocks back to the system, which has to clear each page again when the next step asks for
it: a quarter of a training step on a CPU (docs/measurements/memory.md).
"""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as malloc.h calls them, with M_ before
NEVER, LARGE = -1, 1 << 30  # larger blocks than a gigabyte are handed back: as a rule they come but once


def keep_memory() -> bool:
    """From now on, in this process; whether it is so.

    Settings that the environment has for glibc are left alone, and another C library has none.
    """
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, or another system
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGE)) and bool(mallopt(TRIM_THRESHOLD, NEVER))

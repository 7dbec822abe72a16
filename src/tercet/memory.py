"""Memory that is freed is kept for what comes next, where the C library is glibc.

By itself glibc hands large blocks back to the system, which has to clear each page again when the next step asks for
it: a quarter of a training step on a CPU (docs/measurements/memory.md).
"""

import ctypes
import os
from typing import Any

VARIABLES = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}  # a person's own settings, which are left alone
TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold")
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as malloc.h calls them, with M_ before
NEVER, LARGE = -1, 1 << 30  # larger blocks than a gigabyte are handed back: as a rule they come but once


def keep_memory() -> bool:
    """From now on, in this process; whether it is so.

    False where it has no effect: settings that the environment has for glibc are left alone, another C library has
    none, and an allocator loaded before glibc's, such as jemalloc, goes its own way.
    """
    if VARIABLES & os.environ.keys() or any(name in os.environ.get("GLIBC_TUNABLES", "") for name in TUNABLES):
        return False
    try:
        process = ctypes.CDLL(None)
        mallopt = process.mallopt
        if not _home_of(process.malloc) == _home_of(mallopt) == _home_of(process.gnu_get_libc_version):
            return False
    except (OSError, AttributeError, TypeError):  # another C library, or another system
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGE)) and bool(mallopt(TRIM_THRESHOLD, NEVER))


class _SymbolInfo(ctypes.Structure):
    """What `dladdr` tells: Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p),
    )  # fmt: skip


def _home_of(function: Any) -> int | None:
    """Where the library begins that this function is of."""
    info = _SymbolInfo()
    found = ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info))
    return info.base if found else None

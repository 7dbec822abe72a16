"""Settings of glibc that keep freed memory for reuse and place it in large pages.

By default, glibc returns large blocks to the system, which has to clear each page again when the next step allocates
them. This takes a quarter of a training step on a CPU, or more (benchmarks/log/memory.md). A page of 2 MB needs one
address lookup where pages of 4 KB need 512, and the CPU can prefetch weights across 2 MB instead of 4 KB.
"""

import ctypes
import os
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

VARIABLES = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}  # if one is set, nothing is changed
TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold")
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
DISABLED, LARGE = -1, 1 << 30  # blocks above one gigabyte are still returned, since they are rarely allocated again
TRANSPARENT = Path("/sys/kernel/mm/transparent_hugepage")
MADV_HUGEPAGE = 14
BLOCK = LARGE // 2  # small enough to be allocated in the heap


def keep_memory() -> bool:
    """Keep freed memory in this process from now on, and return whether that succeeded.

    Nothing is changed, and the result is False, if the environment contains one of these settings for glibc, if the C
    library is not glibc, or if another allocator such as jemalloc was preloaded.
    """
    if VARIABLES & os.environ.keys() or any(name in os.environ.get("GLIBC_TUNABLES", "") for name in TUNABLES):
        return False
    try:
        process = ctypes.CDLL(None)
        mallopt = process.mallopt
        if not _library_of(process.malloc) == _library_of(mallopt) == _library_of(process.gnu_get_libc_version):
            return False
    except (OSError, AttributeError, TypeError):  # another C library or system
        return False
    succeeded = bool(mallopt(MMAP_THRESHOLD, LARGE)) and bool(mallopt(TRIM_THRESHOLD, DISABLED))
    if succeeded:
        _grow_heap()
    return succeeded


def large_pages() -> str:
    """Return when the system uses large pages: "always", only on request ("madvise"), or "never"."""
    try:
        states = (TRANSPARENT / "enabled").read_text(encoding="ascii")
        return states.partition("[")[2].partition("]")[0]
    except OSError:
        return "never"


@cache
def _grow_heap() -> None:
    """Extend the heap once by addresses for half of the machine's memory, and request large pages there.

    Only addresses are reserved: the system allocates the memory of a page at the first write to it. Later allocations
    from the heap (weights, KV caches, gradients and activations) then use large pages. A page is small if no large one
    is free, or if a control group has no memory for it. Nothing is done unless the system uses large pages on request
    ("madvise"), or if addresses are limited.
    """
    if large_pages() != "madvise" or _limits_addresses():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    page = 1 << 21  # size of a large page on x86-64 and usually on ARM; elsewhere only an alignment
    n_blocks = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // BLOCK
    blocks = [block for block in (libc.malloc(BLOCK) for _ in range(n_blocks)) if block is not None]
    heap = list[int]()  # addresses of adjacent blocks; others are not in the heap
    for block, following in pairwise((*blocks, 0)):
        heap.append(block)
        if not block < following < block + BLOCK + page:
            break
    if heap:
        first, last = -(-heap[0] // page) * page, (heap[-1] + BLOCK) // page * page
        libc.madvise(first, last - first, MADV_HUGEPAGE)
    for block in blocks:
        libc.free(block)


def _limits_addresses() -> bool:
    """Return whether the number of reserved addresses is limited, or whether that cannot be determined."""
    import resource  # available wherever glibc is

    if any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    ):
        return True
    try:
        strict_overcommit = "2"
        return Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() == strict_overcommit
    except OSError:
        return True


class _SymbolInfo(ctypes.Structure):
    """Dl_info of dlfcn.h, the result of `dladdr`."""

    _fields_ = (
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p),
    )  # fmt: skip


def _library_of(function: Any) -> int | None:
    """Return the base address of the library that contains a function."""
    info = _SymbolInfo()
    found = ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info))
    return info.base if found else None

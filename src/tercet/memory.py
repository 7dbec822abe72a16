"""Memory that is freed is kept for what comes next, and lies in large pages, where the C library is glibc.

By itself glibc hands large blocks back to the system, which has to clear each page again when the next step asks for
it: a quarter of a training step on a CPU (benchmarks/log/memory.md). In pages of 2 MB the CPU looks up an
address 512 times less often than in pages of 4 KB, and fetches weights ahead without a stop at each border.
"""

import ctypes
import os
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

VARIABLES = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}  # a person's own settings, which are left alone
TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold")
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as malloc.h calls them, with M_ before
DISABLED, LARGE = -1, 1 << 30  # larger blocks than a gigabyte are handed back: as a rule they come but once
TRANSPARENT = Path("/sys/kernel/mm/transparent_hugepage")
MADV_HUGEPAGE = 14
BLOCK = LARGE // 2  # smaller than what glibc takes from outside its heap


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
        if not _library_of(process.malloc) == _library_of(mallopt) == _library_of(process.gnu_get_libc_version):
            return False
    except (OSError, AttributeError, TypeError):  # another C library, or another system
        return False
    succeeded = bool(mallopt(MMAP_THRESHOLD, LARGE)) and bool(mallopt(TRIM_THRESHOLD, DISABLED))
    if succeeded:
        _grow_heap()
    return succeeded


def large_pages() -> str:
    """Whether the system gives out large pages by itself, on request or not at all: "always", "madvise" or "never"."""
    try:
        states = (TRANSPARENT / "enabled").read_text(encoding="ascii")
        return states.partition("[")[2].partition("]")[0]
    except OSError:
        return "never"


@cache
def _grow_heap() -> None:
    """Let the heap grow over half of the machine's memory, and ask for large pages there.

    This takes addresses and no memory: a page is filled when it is written to for the first time. All that is allocated
    from now on lies in large pages: weights, KV caches, gradients and activations. Pages are small again if no large
    one is free, or if a control group has no room for it. Nothing is done if the system has no large pages on request,
    or if a limit of addresses is set.
    """
    if large_pages() != "madvise" or _limits_addresses():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    page = 1 << 21  # of x86-64 and, as a rule, of ARM; of another size it is only a boundary
    n_blocks = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // BLOCK
    blocks = [block for block in (libc.malloc(BLOCK) for _ in range(n_blocks)) if block is not None]
    heap = list[int]()  # of blocks that lie one behind the other, as they do in a heap
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
    """Whether a limit counts addresses as if they were memory."""
    import resource  # not on every system, but where glibc is

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
    """What `dladdr` tells: Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p),
    )  # fmt: skip


def _library_of(function: Any) -> int | None:
    """Where the library begins that this function is of."""
    info = _SymbolInfo()
    found = ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info))
    return info.base if found else None

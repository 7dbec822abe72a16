"""Freed memory is reused instead of being cleared by the operating system each time."""

import ctypes
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tercet import memory

glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
STEPS = """
import resource, sys
from tercet.memory import keep_memory
print(keep_memory() if sys.argv[1] == "kept" else None)
from importlib import import_module
ones = import_module(sys.argv[2]).ones
for step in range(20):
    blocks = [ones(count) for count in (50_000, 1_000_000, 10_000_000)]
    del blocks
    if step == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@cache
def steps(mode: str, library: str = "numpy", **environment: str) -> tuple[str, int]:
    """Return the result of `keep_memory`, and the number of cleared pages in 16 steps of such blocks of `library`."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    completed = subprocess.run(
        [sys.executable, "-c", STEPS, mode, library],
        env={**base, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    result, pages = completed.stdout.split()
    return result, int(pages)


@pytest.mark.slow
@glibc
def test_freed_memory_is_reused_without_clearing() -> None:
    result, pages = steps("kept", "torch")
    assert result == "True"
    assert 4 * pages < steps("as it comes")[1]  # of NumPy; PyTorch would clear more, because its pages are small


@pytest.mark.slow
@glibc
@pytest.mark.parametrize("name", ["trim_threshold", "mmap_threshold"])
def test_glibc_tunables_of_the_environment_are_kept(name: str) -> None:
    result, pages = steps("kept", GLIBC_TUNABLES=f"glibc.malloc.{name}=131072")
    assert result == "False"
    assert pages > 4 * steps("kept")[1]


@pytest.mark.slow
@glibc
def test_unrelated_tunables_have_no_effect() -> None:
    assert steps("kept", GLIBC_TUNABLES="glibc.malloc.tcache_count=7")[0] == "True"


@pytest.mark.slow
@glibc
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_another_allocator_is_detected(tmp_path: Path) -> None:
    """The library defines malloc, but `mallopt` is still that of glibc."""
    source = tmp_path / "own.c"
    source.write_text(
        "#include <stddef.h>\nvoid *__libc_malloc(size_t);\nvoid *malloc(size_t size) { return __libc_malloc(size); }\n"
    )
    library = tmp_path / "own.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    assert steps("kept", LD_PRELOAD=str(library))[0] == "False"


@pytest.mark.slow
@glibc
def test_environment_variables_are_kept() -> None:
    result, pages = steps("kept", MALLOC_TRIM_THRESHOLD_="131072")
    assert result == "False"
    assert pages > 4 * steps("kept")[1]


LARGE = """
import resource, sys
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
from tercet.memory import keep_memory
print(keep_memory())
import torch
ones = torch.ones(16 << 20)
for line in open("/proc/self/smaps_rollup", encoding="ascii"):
    if line.startswith("AnonHugePages:"):
        print(int(line.split()[1]) >> 10)
"""


@pytest.mark.slow
@glibc
@pytest.mark.skipif(memory.large_pages() != "madvise", reason="this system has no large pages on request")
@pytest.mark.parametrize("limit", [0, 1 << 40])
def test_allocations_use_large_pages(limit: int) -> None:
    """If a limit counts addresses, the heap grows as by default."""
    completed = subprocess.run([sys.executable, "-c", LARGE, str(limit)], capture_output=True, text=True, check=True)
    result, megabytes = completed.stdout.split()
    assert result == "True"
    assert (int(megabytes) >= 32) == (limit == 0)  # of 64; the machine may have few large pages left


@pytest.mark.parametrize(
    ("text", "state"),
    [("always madvise [never]\n", "never"), ("[always] madvise never\n", "always"), ("", ""), (None, "never")],
)
def test_large_pages_are_read_from_the_system(
    text: str | None, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "TRANSPARENT", tmp_path)
    if text is not None:
        (tmp_path / "enabled").write_text(text)
    assert memory.large_pages() == state

"""The kernels, compiled once on a machine, in seconds, and kept. Where there is no compiler, or TERCET_KERNEL=off is
set, there are none, and everything goes the plain way: the same results, up to rounding.

What is kept is code that runs at the next start: a library that others could have written is not loaded, and one that
is not whole is compiled anew.

    <sha256 of sources, flags, compiler, PyTorch and CPU>.so:    the library | sha256 of its bytes
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from tercet.cache_dir import ForeignFile, cache_dir, check_own
from tercet.kernel.signatures import SIGNATURES

Function = TypeVar("Function", bound=Callable[..., Any])
CPP = Path(__file__).parent / "cpp"
SOURCE = CPP / "kernels.cpp"  # the headers beside it are its parts
# OpenMP is compiled in and not linked: its calls then find the threads that PyTorch has, where a second library would
# start as many again.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-std=c++17")


def constant_when_compiled(function: Function) -> Function:
    """What `torch.compiler.assume_constant_result` does, without its import of the compiler, which takes a second."""
    cast(Any, function)._dynamo_marked_constant = True
    return function


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where this machine can't have them."""
    if os.environ.get("TERCET_KERNEL") == "off":
        return None
    try:
        loaded = ctypes.CDLL(str(_compile()))
    except ForeignFile as error:
        print(f"tercet: no compiled kernels are used: {error}", file=sys.stderr)
        return None
    except (OSError, subprocess.SubprocessError):
        return None
    for name, arguments in SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, None
    return loaded


def warm_up() -> bool:
    """Compile the kernels where that has not been done on this machine, and load them: now, not within the first
    operation that asks for one.

    Returns:
        whether there are some.
    """
    return library() is not None


def build_id() -> str | None:
    """Which kernels these are: another name for other sources, compilers, flags and CPUs; None where there are none."""
    loaded = library()
    return None if loaded is None else Path(loaded._name).stem


def kernels() -> ctypes.CDLL:
    """The compiled kernels, for those who know that there are some."""
    loaded = library()
    assert loaded is not None
    return loaded


def mask_strides(mask: torch.Tensor | None) -> tuple[int, int]:
    """From row to row and from query to query of a mask (B or 1, 1, T or 1, S) without gaps; 0 where one serves all."""
    if mask is None:
        return 0, 0
    return mask.stride(0) if len(mask) > 1 else 0, mask.stride(2) if mask.shape[2] > 1 else 0


def supports_numbers(numbers: torch.Tensor, worth: int) -> bool:
    """Whether these numbers, float32 or bfloat16, are ones for a kernel that pays from so many on."""
    return (
        not torch.compiler.is_compiling()
        and numbers.device.type == "cpu"
        and numbers.dtype in (torch.float32, torch.bfloat16)
        and numbers.numel() >= worth
        and library() is not None
    )


@constant_when_compiled
def has_kernels() -> bool:
    """Whether there are kernels here, in words that `torch.compile` follows."""
    return library() is not None


@constant_when_compiled
def multiplies_bfloat16() -> bool:
    """Whether the kernels were compiled for a CPU that multiplies bfloat16 (AVX-512 BF16)."""
    loaded = library()
    return loaded is not None and bool(ctypes.c_int.in_dll(loaded, "MULTIPLIES_BFLOAT16").value)


def _compile() -> Path:
    """The kernels for these sources, this compiler and this machine's CPU: the user's own, and whole.

    Raises:
        ForeignFile: where others could have written them.
        OSError, SubprocessError: where there is no compiler, or it fails.
    """
    compiler = shutil.which(os.environ.get("CXX") or "c++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    sources = [path.read_text() for path in sorted([SOURCE, *CPP.glob("*.h")])]
    identity = "\n".join([*sources, *FLAGS, compiler, torch.__version__, _cpu()])
    folder = cache_dir() / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = folder.resolve()  # from here on no link is followed
    check_own(folder)
    target = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.so"
    if os.path.lexists(target):
        check_own(target)
        if _is_whole(target):
            return target
        print(f"tercet: {target} is damaged; the kernels are compiled anew", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # beside its place: whole there, or not at all
        compiled, linked = Path(scratch) / "kernels.o", Path(scratch) / "kernels.so"
        for command in (
            [*FLAGS, "-c", str(SOURCE), "-o", str(compiled)],
            ["-shared", str(compiled), "-o", str(linked)],
        ):
            subprocess.run([compiler, *command], check=True, capture_output=True, timeout=120)
        with linked.open("ab") as file:  # the loader reads no further than the library's own end
            file.write(hashlib.sha256(linked.read_bytes()).digest())
        linked.chmod(0o600)  # whatever the umask is
        linked.replace(target)
    return target


def _is_whole(library: Path) -> bool:
    """Whether the bytes are those that were written: of a part of them, the loader would die by a signal."""
    content = library.read_bytes()
    end = len(content) - hashlib.sha256().digest_size
    return end > 0 and hashlib.sha256(memoryview(content)[:end]).digest() == content[end:]


def _cpu() -> str:
    """What the CPU can do, so that a folder shared by several machines holds kernels for each kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return torch.backends.cpu.get_cpu_capability()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")

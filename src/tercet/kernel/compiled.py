"""The kernels, compiled once on a machine, in seconds, and kept. Where there is no compiler, or TERCET_KERNEL=off is
set, there are none, and everything goes the plain way: the same results, up to rounding.
"""

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from tercet.places import cache_folder

HERE = Path(__file__).parent
SOURCE = HERE / "kernels.cpp"  # the headers beside it are its parts
# OpenMP is compiled in and not linked: its calls then find the threads that PyTorch has, where a second library would
# start as many again.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-std=c++17")
POINTER, NUMBER, THREADS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
ROWS = [POINTER] * 5 + [NUMBER] * 3 + [THREADS]
TARGETS = [POINTER, *[NUMBER] * 3, POINTER, *[ctypes.c_float] * 2, ctypes.c_int, *[POINTER] * 2, THREADS]
ROW_BY_ROW = [POINTER] * 4 + [THREADS]
FUNCTIONS = {
    "linear_float32": ROWS,
    "linear_bfloat16": ROWS,
    "linear_int8": ROWS,
    "few_queries": [POINTER] * 5 + [THREADS],
    "best_tokens": [*[POINTER] * 2, *[NUMBER] * 5, POINTER, NUMBER, NUMBER, *[POINTER] * 4, THREADS],
    "cross_entropy_float32": TARGETS,
    "cross_entropy_bfloat16": TARGETS,
    "whole_attention": [POINTER] * 4 + [THREADS],
    "whole_attention_back": [POINTER] * 4 + [THREADS],
    "linear_there": [POINTER] * 4 + [NUMBER] * 3 + [THREADS],
    "linear_back": [POINTER] * 6 + [NUMBER] * 3 + [THREADS],
    "adam": [*[POINTER] * 2, NUMBER, POINTER, ctypes.c_float, THREADS],
    "norm": [*[POINTER] * 2, NUMBER, POINTER, THREADS],
    "bend": [POINTER] * 3 + [NUMBER, ctypes.c_int, THREADS],
    "softmax_float32": ROW_BY_ROW,
    "softmax_bfloat16": ROW_BY_ROW,
    "softmax_back_float32": ROW_BY_ROW,
    "softmax_back_bfloat16": ROW_BY_ROW,
    "fused_step": [POINTER, NUMBER, *[POINTER] * 8, THREADS],
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where this machine can't have them."""
    if os.environ.get("TERCET_KERNEL") == "off":
        return None
    try:
        kernels = ctypes.CDLL(str(_compiled()))
    except (OSError, subprocess.SubprocessError):
        return None
    for name, arguments in FUNCTIONS.items():
        function = getattr(kernels, name)
        function.argtypes, function.restype = arguments, None
    return kernels


def words(numbers: Sequence[int]) -> bytes:
    """Whole numbers as C reads them, 64 bits each; ctypes takes several times as long to make an array."""
    return struct.pack(f"{len(numbers)}q", *numbers)


def mask_strides(mask: torch.Tensor | None) -> tuple[int, int]:
    """From row to row and from query to query of a mask (B or 1, 1, T or 1, S) without gaps; 0 where one serves all."""
    if mask is None:
        return 0, 0
    return mask.stride(0) if len(mask) > 1 else 0, mask.stride(2) if mask.shape[2] > 1 else 0


def takes(numbers: torch.Tensor, worth: int) -> bool:
    """Whether these numbers, float32 or bfloat16, are ones for a kernel that pays from so many on."""
    return (
        not torch.compiler.is_compiling()
        and numbers.device.type == "cpu"
        and numbers.dtype in (torch.float32, torch.bfloat16)
        and numbers.numel() >= worth
        and library() is not None
    )


@torch.compiler.assume_constant_result
def has_kernels() -> bool:
    """Whether there are kernels here, in words that `torch.compile` follows."""
    return library() is not None


@torch.compiler.assume_constant_result
def multiplies_bfloat16() -> bool:
    """Whether the kernels were compiled for a CPU that multiplies bfloat16 (AVX-512 BF16)."""
    kernels = library()
    return kernels is not None and bool(ctypes.c_int.in_dll(kernels, "MULTIPLIES_BFLOAT16").value)


def _compiled() -> Path:
    """The kernels for these sources, this compiler and this machine's CPU.

    Raises:
        OSError, SubprocessError: where there is no compiler, or it fails.
    """
    compiler = shutil.which(os.environ.get("CXX") or "c++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    texts = [path.read_text() for path in sorted([SOURCE, *HERE.glob("*.h")])]
    told = "\n".join([*texts, *FLAGS, compiler, torch.__version__, _cpu()])
    folder = cache_folder() / "kernels"
    kept = folder / f"{hashlib.sha256(told.encode()).hexdigest()[:24]}.so"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as made:  # beside its place: whole there, or not at all
            parts = Path(made) / "kernels.o", Path(made) / "kernels.so"
            for command in (
                [*FLAGS, "-c", str(SOURCE), "-o", str(parts[0])],
                ["-shared", str(parts[0]), "-o", str(parts[1])],
            ):
                subprocess.run([compiler, *command], check=True, capture_output=True, timeout=120)
            parts[1].replace(kept)
    return kept


def _cpu() -> str:
    """What the CPU can do, so that a folder shared by several machines holds kernels for each kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return torch.backends.cpu.get_cpu_capability()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")

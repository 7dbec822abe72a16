"""A product of few rows with a large matrix on a CPU, at the speed at which the matrix can be read.

A token that is written is one row, and PyTorch's products are made for many: for one to sixteen rows they reach a half
to a quarter of that speed, and do not know weights in int8. `few_rows.cpp` is made for few; it is compiled once on a
machine, in seconds, and kept. Where there is no compiler, or TERCET_KERNEL=off is set, everything goes the plain way:
the same results, up to rounding.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tercet.places import cache_folder

SOURCE = Path(__file__).with_suffix(".cpp")
# OpenMP is compiled in and not linked: its calls then find the threads that PyTorch has, where a second library would
# start as many again.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-std=c++17")
FEW = 16  # rows up to which it is the faster way
LARGE = 1 << 18  # weights from which it is
NAMES = {torch.float32: "linear_float32", torch.bfloat16: "linear_bfloat16", torch.int8: "linear_int8"}


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether this product is one for the kernel: without gradients, on a CPU, few rows, a large matrix."""
    return (
        not torch.compiler.is_compiling()
        and weight.numel() >= LARGE
        and 0 < x.numel() <= FEW * x.shape[-1]
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == torch.float32
        and weight.dtype in NAMES
        and weight.is_contiguous()
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
        and not torch.is_autocast_enabled("cpu")
        and library() is not None
    )


def few_rows(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """`(x @ weight.T) * scale + bias`; ask `takes` before.

    Args:
        x: (..., K) float32.
        weight: (N, K) float32, bfloat16 or int8.
        scale, bias: (N) float32.
    """
    kernel = library()
    assert kernel is not None
    x = x.contiguous()
    rows, wide, long = x.numel() // x.shape[-1], x.shape[-1], len(weight)
    y = x.new_empty(*x.shape[:-1], long)
    getattr(kernel, NAMES[weight.dtype])(
        x.data_ptr(), weight.data_ptr(), None if scale is None else scale.data_ptr(),
        None if bias is None else bias.data_ptr(), y.data_ptr(), rows, wide, long, torch.get_num_threads(),
    )  # fmt: skip
    return y


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel; None where this machine can't have it."""
    if os.environ.get("TERCET_KERNEL") == "off":
        return None
    try:
        kernel = ctypes.CDLL(str(_compiled()))
    except (OSError, subprocess.SubprocessError):
        return None
    for name in NAMES.values():
        function = getattr(kernel, name)
        function.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3 + [ctypes.c_int]
        function.restype = None
    return kernel


def _compiled() -> Path:
    """The kernel for this source, this compiler and this machine's CPU.

    Raises:
        OSError, SubprocessError: where there is no compiler, or it fails.
    """
    compiler = shutil.which(os.environ.get("CXX") or "c++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    told = "\n".join([SOURCE.read_text(), *FLAGS, compiler, torch.__version__, _cpu()])
    folder = cache_folder() / "kernels"
    kept = folder / f"{hashlib.sha256(told.encode()).hexdigest()[:24]}.so"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as made:  # beside its place: whole there, or not at all
            parts = Path(made) / "kernel.o", Path(made) / "kernel.so"
            for command in (
                [*FLAGS, "-c", str(SOURCE), "-o", str(parts[0])],
                ["-shared", str(parts[0]), "-o", str(parts[1])],
            ):
                subprocess.run([compiler, *command], check=True, capture_output=True, timeout=120)
            parts[1].replace(kept)
    return kept


def _cpu() -> str:
    """What the CPU can do, so that a folder shared by several machines holds a kernel for each kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return torch.backends.cpu.get_cpu_capability()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")

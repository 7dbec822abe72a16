"""For how much work a kernel that has PyTorch's way beside it is used: where it was measured to take no more time.

By the kernels' level, and if that matters by the CPU's vendor, as whole training steps were measured
(benchmarks/log/kernels.md). A kernel alone, in a loop, finds in the caches what a step does not, so no machine
measures a table of its own.
"""

import hashlib
import math
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from tercet.kernel.build import choose_kernels, constant_when_compiled, has_kernels, multiplies_bfloat16
from tercet.kernel.levels import cpu_vendor
from tercet.kernel.threads import is_thread_independent


class WorkRange(NamedTuple):
    """Multiplications of a linear layer, scores of attention or elements of an activation: the bounds of a range."""

    min_work: float
    max_work: float


ALWAYS, NEVER = WorkRange(0, math.inf), WorkRange(math.inf, math.inf)
KERNELS, DTYPES = ("flash_attention", "activate", "linear"), ("float32", "bfloat16")
TABLE_KEYS = tuple(f"{kernel} {dtype}" for dtype in DTYPES for kernel in KERNELS)
NO_KERNELS, ALL_KERNELS = dict.fromkeys(TABLE_KEYS, NEVER), dict.fromkeys(TABLE_KEYS, ALWAYS)
# Attention and activations in float32, these in bfloat16 too; and where the CPU multiplies bfloat16, all that is in it.
FLOAT32 = NO_KERNELS | dict.fromkeys(("flash_attention float32", "activate float32", "activate bfloat16"), ALWAYS)
BFLOAT16 = {name: ALWAYS if name.endswith("bfloat16") else NEVER for name in TABLE_KEYS}
FLOAT32_AND_BFLOAT16 = {**FLOAT32, "flash_attention bfloat16": ALWAYS, "linear bfloat16": ALWAYS}
TABLES = {
    "none": NO_KERNELS,
    "x86-64-v3": {**FLOAT32, "linear float32": WorkRange(1 << 28, math.inf)},
    "x86-64-v3, GenuineIntel": FLOAT32,  # PyTorch's products are MKL's, which reach these CPUs' limit
    "x86-64-v4": FLOAT32,
    "x86-64-v4-bf16": FLOAT32_AND_BFLOAT16,
    "x86-64-v4-amx": {
        **FLOAT32_AND_BFLOAT16,
        "linear bfloat16": WorkRange(0, 1 << 27),
    },  # oneDNN's tiles are faster beyond
}


def product_dtype(x: Tensor) -> torch.dtype:
    """In which it would be multiplied; float64 stays what it is in mixed precision, too."""
    is_autocast = torch.is_autocast_enabled("cpu") and x.dtype != torch.float64
    return torch.get_autocast_dtype("cpu") if is_autocast else x.dtype


def is_faster(kernel: str, dtype: torch.dtype, work: int) -> bool:
    """Whether this kernel is the faster way for so much work in such numbers on this machine."""
    if dtype == torch.bfloat16:  # an activation is worked out in float32 even so
        possible = has_kernels() if kernel == "activate" else multiplies_bfloat16()
    else:
        possible = dtype == torch.float32 and has_kernels()
    min_work, max_work = work_range(kernel, str(dtype).removeprefix("torch.")) if possible else NEVER
    return min_work <= work <= max_work


@cache
def tuning_key() -> str:
    """Which of `TABLES` is this machine's: of the kernels' level, or of that level and the CPU's vendor."""
    level = choose_kernels().level
    vendor_key = f"{level}, {cpu_vendor()}"
    return vendor_key if vendor_key in TABLES else level


def describe_table(table: Mapping[str, WorkRange]) -> str:
    """For how much work which kernel is used, in a line."""
    return ", ".join(f"{name} {_describe(*of)}" for name, of in table.items())


def _describe(min_work: float, max_work: float) -> str:
    if math.isinf(min_work):
        return "never"
    words = [f"from {min_work:,.0f}"] if min_work else []
    words += [f"up to {max_work:,.0f}"] if math.isfinite(max_work) else []
    return " ".join(words) or "always"


def kernel_table() -> dict[str, WorkRange]:
    """Return the table in force, this machine's.

    If results must not depend on the number of threads, kernels take all work: the alternative runs on one thread.
    """
    if is_thread_independent():
        return ALL_KERNELS
    return TABLES.get(tuning_key(), BFLOAT16)  # of other levels nothing is known in float32


def kernel_table_id() -> str:
    """Return a name of that table with its hash."""
    if is_thread_independent():
        return "every kernel"
    text = describe_table(kernel_table())
    return f"packaged-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@constant_when_compiled
def work_range(kernel: str, dtype: str) -> WorkRange:
    """For how much work a kernel is used."""
    return kernel_table()[f"{kernel} {dtype}"]

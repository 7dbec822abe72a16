"""The amount of work for which a kernel replaces PyTorch's operation.

A kernel is used if it was measured to take no more time.

The tables depend on the level of the kernels and, if it matters, on the CPU's vendor. They are based on measurements of
whole training steps (benchmarks/log/kernels.md). They are not measured again on each machine: a short benchmark, which
calls a kernel in a loop, finds its data in the caches, unlike a training step.
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
    """Amount of work for which a kernel is used, from `min_work` to `max_work`.

    The unit is multiplications (linear), scores (flash_attention) or elements (activate).
    """

    min_work: float
    max_work: float


ALWAYS, NEVER = WorkRange(0, math.inf), WorkRange(math.inf, math.inf)
KERNELS, DTYPES = ("flash_attention", "activate", "linear"), ("float32", "bfloat16")
TABLE_KEYS = tuple(f"{kernel} {dtype}" for dtype in DTYPES for kernel in KERNELS)
NO_KERNELS, ALL_KERNELS = dict.fromkeys(TABLE_KEYS, NEVER), dict.fromkeys(TABLE_KEYS, ALWAYS)
# FLOAT32 has attention and activations in float32 and activations in bfloat16. CPUs that multiply bfloat16 also have
# the other bfloat16 kernels (FLOAT32_AND_BFLOAT16). BFLOAT16 is for levels that are not in TABLES.
FLOAT32 = NO_KERNELS | dict.fromkeys(("flash_attention float32", "activate float32", "activate bfloat16"), ALWAYS)
BFLOAT16 = {name: ALWAYS if name.endswith("bfloat16") else NEVER for name in TABLE_KEYS}
FLOAT32_AND_BFLOAT16 = {**FLOAT32, "flash_attention bfloat16": ALWAYS, "linear bfloat16": ALWAYS}
TABLES = {
    "none": NO_KERNELS,
    "x86-64-v3": {**FLOAT32, "linear float32": WorkRange(1 << 28, math.inf)},
    "x86-64-v3, GenuineIntel": FLOAT32,  # PyTorch uses MKL, which reaches the limit of these CPUs
    "x86-64-v4": FLOAT32,
    "x86-64-v4-bf16": FLOAT32_AND_BFLOAT16,
    "x86-64-v4-amx": {
        **FLOAT32_AND_BFLOAT16,
        "linear bfloat16": WorkRange(0, 1 << 27),
    },  # oneDNN's tiles are faster above
}


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which PyTorch multiplies `x` on a CPU. Mixed precision does not change float64."""
    is_autocast = torch.is_autocast_enabled("cpu") and x.dtype != torch.float64
    return torch.get_autocast_dtype("cpu") if is_autocast else x.dtype


def is_faster(kernel: str, dtype: torch.dtype, work: int) -> bool:
    """Return whether this kernel is faster than PyTorch for this amount of work in this dtype."""
    if dtype == torch.bfloat16:  # activations are computed in float32 in any case
        possible = has_kernels() if kernel == "activate" else multiplies_bfloat16()
    else:
        possible = dtype == torch.float32 and has_kernels()
    min_work, max_work = work_range(kernel, str(dtype).removeprefix("torch.")) if possible else NEVER
    return min_work <= work <= max_work


@cache
def tuning_key() -> str:
    """Return the key of this machine in `TABLES`: the level, or the level and the CPU's vendor."""
    level = choose_kernels().level
    vendor_key = f"{level}, {cpu_vendor()}"
    return vendor_key if vendor_key in TABLES else level


def describe_table(table: Mapping[str, WorkRange]) -> str:
    """Return, in one line, the amounts of work for which each kernel is used."""
    return ", ".join(f"{name} {_describe(*of)}" for name, of in table.items())


def _describe(min_work: float, max_work: float) -> str:
    if math.isinf(min_work):
        return "never"
    words = [f"from {min_work:,.0f}"] if min_work else []
    words += [f"up to {max_work:,.0f}"] if math.isfinite(max_work) else []
    return " ".join(words) or "always"


def kernel_table() -> dict[str, WorkRange]:
    """Return the table that is in use.

    If results must not depend on the number of threads, kernels take all work, since PyTorch runs on one thread.
    """
    if is_thread_independent():
        return ALL_KERNELS
    return TABLES.get(tuning_key(), BFLOAT16)  # other levels were not measured in float32


def kernel_table_id() -> str:
    """Return an id of the table in use: its hash, or "every kernel" if kernels do all work."""
    if is_thread_independent():
        return "every kernel"
    text = describe_table(kernel_table())
    return f"packaged-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@constant_when_compiled
def work_range(kernel: str, dtype: str) -> WorkRange:
    """Return the amount of work for which a kernel is used."""
    return kernel_table()[f"{kernel} {dtype}"]

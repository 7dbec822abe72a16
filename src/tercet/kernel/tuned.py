"""From how much work on a kernel that has PyTorch's way beside it is used: where it was measured to take no more time.

By the kernels' level, and where that matters by the CPU's vendor (docs/measurements/kernels.md); or, where this machine
was measured itself, by what `autotune` kept of it.
"""

import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from tercet.kernel.build import build_id, choose_kernels, constant_when_compiled, has_kernels, multiplies_bfloat16
from tercet.kernel.levels import cpu_vendor
from tercet.kernel.machine_times import MachineTimes

# Work is counted in multiplications, scores and numbers. In bfloat16 they are used whatever there is to do.
ALL_BUT_LINEAR = {"flash_attention": 0.0, "activate": 0.0}
FLOAT32 = {
    "x86-64-v3": {**ALL_BUT_LINEAR, "linear": float(1 << 28)},
    "x86-64-v3, GenuineIntel": ALL_BUT_LINEAR,  # PyTorch's products are MKL's, which reach these CPUs' limit
    "x86-64-v4": ALL_BUT_LINEAR,
    "x86-64-v4-bf16": ALL_BUT_LINEAR,
    "x86-64-v4-amx": ALL_BUT_LINEAR,
}
TUNED = tuple(f"{kernel} {dtype}" for dtype in ("float32", "bfloat16") for kernel in (*ALL_BUT_LINEAR, "linear"))


def product_dtype(x: Tensor) -> torch.dtype:
    """In which it would be multiplied; float64 stays what it is in mixed precision, too."""
    mixed = torch.is_autocast_enabled("cpu") and x.dtype != torch.float64
    return torch.get_autocast_dtype("cpu") if mixed else x.dtype


def pays(kernel: str, dtype: torch.dtype, work: int) -> bool:
    """Whether this kernel is the faster way for so much work in such numbers on this machine."""
    if dtype == torch.bfloat16:  # an activation is worked out in float32 even so
        possible = has_kernels() if kernel == "activate" else multiplies_bfloat16()
        return possible and work >= least_work(kernel, "bfloat16")
    return dtype == torch.float32 and work >= least_work(kernel, "float32")


@cache
def tuning_key() -> str:
    """Which row of `FLOAT32` is this machine's: of the kernels' level, or of that level and the CPU's vendor."""
    level = choose_kernels().level
    of_vendor = f"{level}, {cpu_vendor()}"
    return of_vendor if of_vendor in FLOAT32 else level


def machine_table() -> MachineTimes:
    """What `autotune` keeps of this machine."""
    return MachineTimes("autotune", TUNED, kernels=build_id() or "none")


@cache
def autotuned() -> dict[str, float] | None:
    """The table that was measured on this machine; None where none was. A process keeps to what it found first."""
    return machine_table().read() if has_kernels() else None


def describe_table(table: Mapping[str, float | None]) -> str:
    """From how much work on which kernel is used, in a line; never where that is infinite or None."""
    never = (None, math.inf)
    return ", ".join(f"{name} {'never' if work in never else f'from {work:,.0f}'}" for name, work in table.items())


@constant_when_compiled
def least_work(kernel: str, dtype: str) -> float:
    """From how much work on a kernel is used, by the table that holds here; infinite where it never is."""
    table = autotuned()
    if table is not None:
        return table[f"{kernel} {dtype}"]
    return 0.0 if dtype == "bfloat16" else FLOAT32.get(tuning_key(), {}).get(kernel, math.inf)

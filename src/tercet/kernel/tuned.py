"""From how much work on a kernel that has PyTorch's products beside it is used in float32: where it was measured to
take no more time (docs/measurements/kernels.md). By the kernels' level, and where that matters by the CPU's vendor."""

import math
from functools import cache

import torch
from torch import Tensor

from tercet.kernel.build import choose_kernels, constant_when_compiled, has_kernels, multiplies_bfloat16
from tercet.kernel.levels import cpu_vendor

# Work is counted in multiplications, scores and numbers. In bfloat16 they are used whatever there is to do.
ALL_BUT_LINEAR = {"flash_attention": 0.0, "activate": 0.0}
FLOAT32 = {
    "x86-64-v3": {**ALL_BUT_LINEAR, "linear": float(1 << 28)},
    "x86-64-v3, GenuineIntel": ALL_BUT_LINEAR,  # PyTorch's products are MKL's, which reach these CPUs' limit
    "x86-64-v4": ALL_BUT_LINEAR,
    "x86-64-v4-bf16": ALL_BUT_LINEAR,
    "x86-64-v4-amx": ALL_BUT_LINEAR,
}


def product_dtype(x: Tensor) -> torch.dtype:
    """In which it would be multiplied; float64 stays what it is in mixed precision, too."""
    mixed = torch.is_autocast_enabled("cpu") and x.dtype != torch.float64
    return torch.get_autocast_dtype("cpu") if mixed else x.dtype


def pays(kernel: str, dtype: torch.dtype, work: int) -> bool:
    """Whether this kernel is the faster way for so much work in such numbers on this machine."""
    if dtype == torch.bfloat16:  # an activation is worked out in float32 even so
        return has_kernels() if kernel == "activate" else multiplies_bfloat16()
    return dtype == torch.float32 and work >= _least_work(kernel)


@cache
def tuning_key() -> str:
    """Which row of `FLOAT32` is this machine's: of the kernels' level, or of that level and the CPU's vendor."""
    level = choose_kernels().level
    of_vendor = f"{level}, {cpu_vendor()}"
    return of_vendor if of_vendor in FLOAT32 else level


@constant_when_compiled
def _least_work(kernel: str) -> float:
    return FLOAT32.get(tuning_key(), {}).get(kernel, math.inf)

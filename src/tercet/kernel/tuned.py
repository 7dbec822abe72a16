"""From how much work on a kernel that has PyTorch's products beside it is used in float32, by the level of the kernels:
where it was measured to take no more time (docs/measurements/kernels.md)."""

import math

import torch
from torch import Tensor

from tercet.kernel.build import choose_kernels, constant_when_compiled, multiplies_bfloat16

# In bfloat16 each of them is used wherever the CPU multiplies that. Multiplications, scores, numbers.
FLOAT32 = {"x86-64-v3": {"linear": 1 << 28, "flash_attention": 0, "activate": 0}}


def product_dtype(x: Tensor) -> torch.dtype:
    """In which it would be multiplied; float64 stays what it is in mixed precision, too."""
    mixed = torch.is_autocast_enabled("cpu") and x.dtype != torch.float64
    return torch.get_autocast_dtype("cpu") if mixed else x.dtype


def pays(kernel: str, dtype: torch.dtype, work: int) -> bool:
    """Whether this kernel is the faster way for so much work in such numbers on this machine."""
    if dtype == torch.bfloat16:
        return multiplies_bfloat16()
    return dtype == torch.float32 and work >= _least_work(kernel)


@constant_when_compiled
def _least_work(kernel: str) -> float:
    return FLOAT32.get(choose_kernels().level, {}).get(kernel, math.inf)

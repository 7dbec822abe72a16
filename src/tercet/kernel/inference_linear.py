"""A linear layer without gradients on a CPU: few rows at the speed at which weights can be read, many at that of the
arithmetic.

A token that is written is one row, and PyTorch's products are made for many: for one to sixteen rows they reach a half
to a quarter of that speed, and do not know weights in int8. `gemv.h` is made for few; `gemm.h` for the beams of a
batch and for prompts, where PyTorch's first choice is half as fast on some CPUs (docs/measurements/kernels.md).
"""

import torch
from torch import Tensor

from tercet.kernel.build import kernels, library

FEW = 16  # rows up to which weights are read but once
LARGE = 1 << 18  # weights from which it pays for few rows
MUCH = 1 << 22  # multiplications from which it pays for many
NAMES = {torch.float32: "linear_float32", torch.bfloat16: "linear_bfloat16", torch.int8: "linear_int8"}


def supports_inference_linear(x: Tensor, weight: Tensor) -> bool:
    """Whether this product is one for the kernel: without gradients, on a CPU, enough to do."""
    rows = x.numel() // x.shape[-1]
    return (
        not torch.compiler.is_compiling()
        and (weight.numel() >= LARGE if rows <= FEW else rows * weight.numel() >= MUCH)
        and rows > 0
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == torch.float32
        and weight.dtype in NAMES
        and weight.is_contiguous()
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
        and not torch.is_autocast_enabled("cpu")
        and library() is not None
    )


def inference_linear(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """`(x @ weight.T) * scale + bias`; ask `supports_inference_linear` before.

    Args:
        x: (..., K) float32.
        weight: (N, K) float32, bfloat16 or int8.
        scale, bias: (N) float32.
    """
    x = x.contiguous()
    out_features, in_features = weight.shape
    y = x.new_empty(*x.shape[:-1], out_features)
    getattr(kernels(), NAMES[weight.dtype])(
        x, weight, scale, bias, y, x.numel() // in_features, in_features, out_features, torch.get_num_threads()
    )
    return y

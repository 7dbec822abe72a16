"""A linear layer without gradients on a CPU: few rows at the speed at which weights can be read, many at that of the
arithmetic.

A token that is written is one row, and PyTorch's products are made for many: for one to sixteen rows they reach a half
to a quarter of that speed, and do not know weights in int8. `gemv.h` is made for few; `gemm.h` for the beams of a
batch and for prompts, where PyTorch's first choice is half as fast on some CPUs (benchmarks/log/kernels.md).
"""

import torch
from torch import Tensor

from tercet.kernel.build import kernels, library
from tercet.kernel.contract import Contract, count_rows
from tercet.kernel.operators import operator
from tercet.kernel.threads import kernel_threads

MAX_GEMV_ROWS = 16  # rows up to which weights are read but once
MIN_GEMV_WEIGHTS = 1 << 18  # weights from which it pays for few rows
MIN_GEMM_WORK = 1 << 22  # multiplications from which it pays for many
NAMES = {torch.float32: "linear_float32", torch.bfloat16: "linear_bfloat16", torch.int8: "linear_int8"}
VECTORS = {"scale": "float32[N]?", "bias": "float32[N]?"}
WEIGHT = "float32|bfloat16|int8[N K%1]"
INPUT = Contract("inference_linear", weight=WEIGHT, x="float32[* K] strided", **VECTORS)
FORWARD = Contract("inference_linear", weight=WEIGHT, x="float32[* K]", **VECTORS)


def supports_inference_linear(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None
) -> bool:
    """Whether this product is one for the kernel: without gradients, on a CPU, enough to do."""
    rows = count_rows(x)
    return (
        not torch.compiler.is_compiling()
        and (weight.numel() >= MIN_GEMV_WEIGHTS if rows <= MAX_GEMV_ROWS else rows * weight.numel() >= MIN_GEMM_WORK)
        and rows > 0
        and not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, scale, bias)))
        and not torch.is_autocast_enabled("cpu")
        and INPUT.fits(weight, x, scale, bias)
        and library() is not None
    )


def inference_linear(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """`(x @ weight.T) * scale + bias`; ask `supports_inference_linear` before.

    Args:
        x: (..., K) float32.
        weight: (N, K) float32, bfloat16 or int8.
        scale, bias: (N) float32.
    """
    return _forward(x.contiguous(), weight, scale, bias)


def _fake(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@operator("inference_linear", _fake)
def _forward(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    sizes = FORWARD.sizes(weight, x, scale, bias)
    out_features, in_features = sizes["N"], sizes["K"]
    y = _fake(x, weight, scale, bias)
    getattr(kernels(), NAMES[weight.dtype])(
        x, weight, scale, bias, y, x.numel() // in_features, in_features, out_features, kernel_threads()
    )
    return y

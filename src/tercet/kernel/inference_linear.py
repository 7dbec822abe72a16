"""Linear layer without gradients on a CPU.

With few rows, reading the weights takes most of the time; with many rows, arithmetic does.

`gemv.h` is for few rows, as in decoding, which has one row per sequence. PyTorch's products are optimized for many
rows: with one to sixteen rows they reach a quarter to a half of the memory bandwidth. They do not support int8 weights.
`gemm.h` is for many rows, such as prompts and the beams of a batch, for which PyTorch's default is half as fast on some
CPUs (benchmarks/log/kernels.md).
"""

import torch
from torch import Tensor

from tercet.kernel.build import kernels, library
from tercet.kernel.contract import Contract, count_rows
from tercet.kernel.operators import operator
from tercet.kernel.threads import kernel_threads

MAX_GEMV_ROWS = 16  # maximum number of rows for which weights are read only once
MIN_GEMV_WEIGHTS = 1 << 18  # minimum number of weights for few rows
MIN_GEMM_WORK = 1 << 22  # minimum number of multiplications for many rows
NAMES = {torch.float32: "linear_float32", torch.bfloat16: "linear_bfloat16", torch.int8: "linear_int8"}
VECTORS = {"scale": "float32[N]?", "bias": "float32[N]?"}
WEIGHT = "float32|bfloat16|int8[N K%1]"
INPUT = Contract("inference_linear", weight=WEIGHT, x="float32[* K] strided", **VECTORS)
FORWARD = Contract("inference_linear", weight=WEIGHT, x="float32[* K]", **VECTORS)


def supports_inference_linear(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None
) -> bool:
    """Return whether the kernel supports this product: enough work on a CPU, without gradients and autocast."""
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
    """Return `(x @ weight.T) * scale + bias`. Requires `supports_inference_linear`.

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

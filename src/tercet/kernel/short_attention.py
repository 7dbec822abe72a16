"""Attention over few keys on a CPU: PyTorch's products with a masked softmax between them.

PyTorch's fused kernel is slower, because it works in blocks that a short sequence does not fill.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.kernel.masked_softmax import masked_softmax

# Maximum number of keys for which this is faster than the fused kernel (benchmarks/log/kernels.md). SHORT is for full
# float32 precision. SHORT_BY_ONEDNN is for bfloat16 and float32 in lower precision, for which small products use oneDNN
# and the fused kernel is slow.
SHORT, SHORT_BY_ONEDNN = 128, 1024


def supports_short_attention(q: Tensor, k: Tensor) -> bool:
    """Return whether `short_attention` is faster than PyTorch for queries (B, H, T, K) and keys (B, G, S, K)."""
    # `torch.compile` cannot trace `get_float32_matmul_precision`. Compiled code uses the lower limit for float32.
    compiling = torch.compiler.is_compiling()
    is_full_float32 = q.dtype == torch.float32 and (compiling or torch.get_float32_matmul_precision() == "highest")
    is_short = k.shape[-2] <= (SHORT if is_full_float32 else SHORT_BY_ONEDNN) or q.shape[-2] == 1
    return q.is_cpu and is_short and not torch.compiler.is_exporting()


def short_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, bias: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """Return softmax(q kT / sqrt(K) + bias) v. Arguments and result are those of `api.attention`."""
    heads = q.shape[1]
    scores = (q / math.sqrt(q.shape[-1])) @ _repeat_heads(k, heads).mT  # (B, H, T, S)
    weights = masked_softmax(scores if bias is None else scores + bias, mask=mask, causal=causal)
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return weights.to(v.dtype) @ _repeat_heads(v, heads)  # (B, H, T, K)


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)

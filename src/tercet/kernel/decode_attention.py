"""Attention of few queries on a CPU, as in a decode step, in one call.

Written out, the formula is ten operations over tables that are as wide as the longest row may get; `decode_attention.h`
reads the keys and values that each query may see, once, and nothing else.
"""

import torch
from torch import Tensor

from tercet.kernel.build import kernels, library, mask_strides
from tercet.kernel.fused_step import LANES, kv_table

FEW = 8  # queries of a row up to which it is the faster way


def supports_decode_attention(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether this attention is one for the kernel: without gradients, on a CPU, few queries.

    Args:
        q: (B, H, T, K).
        k, v: (B, G, S, K).
    """
    return (
        not torch.compiler.is_compiling()
        and 0 < q.shape[2] <= FEW
        and q.device.type == "cpu"
        and q.dtype == k.dtype == v.dtype == torch.float32
        and q.shape[-1] % LANES == 0
        and q.shape[-1] == v.shape[-1]
        and k.stride(-1) == v.stride(-1) == 1
        and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
        and library() is not None
    )


def decode_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q kT / sqrt(K)) v; ask `supports_decode_attention` before.

    Args:
        q: (B, H, T, K) float32.
        k, v: (B, G, S, K) float32; heads next to each other share one of the G.
        mask: (B or 1, 1, T or 1, S) bool: True where a query may see a key. One that sees none takes zeros.

    Returns:
        (B, H, T, K), in memory (B, T, H, K).
    """
    batch, heads, queries, d_head = q.shape
    q = q.transpose(1, 2).contiguous()
    y = torch.empty_like(q)  # (B, T, H, K)
    mask = None if mask is None else mask.contiguous()
    sizes = (batch * queries, heads, k.shape[1], d_head, queries, k.shape[2], *mask_strides(mask))
    kernels().decode_attention(q, kv_table(k, v), mask, y, sizes, torch.get_num_threads())
    return y.transpose(1, 2)

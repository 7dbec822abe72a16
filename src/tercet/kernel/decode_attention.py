"""Attention of a few queries on a CPU in one call, as in a decode step.

PyTorch needs ten operations, each over KV caches of the maximum length. `decode_attention.h` reads only the keys and
values to which a query may attend, once for each query.
"""

import torch
from torch import Tensor

from tercet.kernel.build import kernels, library, mask_strides
from tercet.kernel.contract import Contract
from tercet.kernel.fused_step import kv_table
from tercet.kernel.operators import operator
from tercet.kernel.threads import kernel_threads

MAX_QUERIES = 8  # maximum number of queries per row for which the kernel is faster
TABLES = {"k": "float32[B G S K] rows", "v": "float32[B G S K] rows"}
INPUT = Contract("decode_attention", q="float32[B H%G T K%8] strided", **TABLES, mask="bool[#B 1 #T S]? strided")
FORWARD = Contract("decode_attention", q="float32[B T H%G K%8]", **TABLES, mask="bool[#B 1 #T S]?")


def supports_decode_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> bool:
    """Return whether the kernel supports this attention: few queries on a CPU, without gradients.

    Args:
        q: (B, H, T, K).
        k, v: (B, G, S, K).
        mask: (B or 1, 1, T or 1, S).
    """
    return (
        not torch.compiler.is_compiling()
        and 0 < q.shape[2] <= MAX_QUERIES
        and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
        and INPUT.fits(q, k, v, mask)
        and library() is not None
    )


def decode_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(q kT / sqrt(K)) v. Requires `supports_decode_attention`.

    Args:
        q: (B, H, T, K) float32.
        k, v: (B, G, S, K) float32. Each of the G heads is shared by consecutive query heads.
        mask: (B or 1, 1, T or 1, S) bool, True if a query may attend to a key; None if each may attend to all. A query
            without keys gives zeros.

    Returns:
        (B, H, T, K), stored as (B, T, H, K).
    """
    mask = None if mask is None else mask.contiguous()
    return _forward(q.transpose(1, 2).contiguous(), k, v, mask).transpose(1, 2)


def _fake(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return torch.empty_like(q)


@operator("decode_attention", _fake)
def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Run the kernel; q and the result are (B, T, H, K)."""
    sizes = FORWARD.sizes(q, k, v, mask)
    batch, queries, heads, groups, keys, d_head = (sizes[axis] for axis in "BTHGSK")
    y = torch.empty_like(q)
    integers = (batch * queries, heads, groups, d_head, queries, keys, *mask_strides(mask))
    kernels().decode_attention(q, kv_table(k, v), mask, y, integers, kernel_threads())
    return y

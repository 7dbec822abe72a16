"""Replace operations of a model by ones that keep as much for the backward pass as fused kernels.

They keep:

    attention   queries, keys, values, output and one number per query; never the (T, S) weights (Dao et al.,
                "FlashAttention", 2022). On a CPU this holds only without dropout and bias. On a GPU, a small table
                masks documents.
    dropout     one byte per element on a GPU, one element of the same dtype on a CPU

The replacements compute nothing. They are for fake tensors, which have only shapes and for which neither Tercet's nor
the GPU's kernels are available.
"""

from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from tercet.nn import Attention
from tercet.nn.attention import Mask, attend, causal_mask
from tercet.nn.document_mask import BlockMask
from tercet.nn.feedforward import FeedForward
from tercet.nn.linear import multiplied_dtype

Device = Literal["cpu", "cuda"]


def use_fused_operations(model: nn.Module, device: Device) -> None:
    """Replace attention and dropout of a model in place.

    Args:
        model: Model of fake tensors.
        device: Device whose kernels are imitated.
    """
    parts: list[Any] = list(model.modules())
    for part in parts:
        if isinstance(part, Attention) and type(part).attend is Attention.attend:
            cast(Any, part).attend = partial(attend_fake, device=device)
        elif device == "cuda" and isinstance(part, nn.Dropout):
            cast(Any, part).forward = partial(_drop, part, part.p)
        elif device == "cuda" and isinstance(part, FeedForward) and part.dropout:
            part.down.register_forward_pre_hook(partial(_drop_input, part, part.dropout))
            part.dropout = 0.0


def attend_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    device: Device,
    mask: Mask | BlockMask | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """Return a tensor with the shape of the output of `tercet.nn.attend` for the same arguments.

    The backward pass keeps as much as that of a fused kernel on `device`.
    """
    if softcap is not None or (device == "cpu" and (dropout or bias is not None)):
        return attend(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout, softcap=softcap)
    q, k, v = (x.to(multiplied_dtype(x)) for x in (q, k, v))
    if isinstance(mask, BlockMask):
        mask = None
    if bias is not None:  # combined with the mask: PyTorch's kernels accept only one of them
        mask = causal_mask(bias) if causal else mask
        bias = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, 0.0)
    elif mask is not None:
        bias = mask if device == "cpu" else mask.to(q.dtype)
    return cast(Tensor, cast(Any, _FusedAttention).apply(q, k, v, bias))


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        out = torch.empty_like(q)
        normalizer = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, v, bias, out, normalizer)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        inputs = zip(ctx.saved_tensors[:4], ctx.needs_input_grad, strict=True)
        return tuple(torch.empty_like(x) if x is not None and wants else None for x, wants in inputs)


def _drop(part: nn.Module, share: float, x: Tensor) -> Tensor:
    return torch.native_dropout(x, share, True)[0] if share and part.training else x


def _drop_input(part: nn.Module, share: float, _linear: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    return _drop(part, share, inputs[0])

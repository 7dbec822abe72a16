"""The softmax of attention over what each query may see, on a CPU, there and back: a row is read once each way, where
masking, widening, PyTorch's softmax and narrowing are ten passes over the largest tensor of a layer.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tercet.kernel.compiled import library, mask_strides, takes, words

WORTH = 1 << 20  # scores from which it is worth having the kernel compiled


def takes_softmax(scores: Tensor) -> bool:
    """Whether these scores, (B, H, T, S), are ones for the kernel."""
    return takes(scores, WORTH)


def seen_softmax(scores: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
    """Weights that sum to one over the keys that a query sees, and are zero elsewhere; ask `takes_softmax` before.

    Args:
        scores: (B, H, T, S) float32 or bfloat16; worked out in float32.
        mask: (B or 1, 1, T or 1, S) bool: True where a query may see a key. One that sees none takes zeros.
        causal: query t sees keys 0..t, and there is no mask.

    Returns:
        (B, H, T, S), of the scores' type.
    """
    return _SeenSoftmax.apply(scores, mask, causal)


class _SeenSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        scores = scores.contiguous()
        weights = torch.empty_like(scores)
        mask = None if mask is None else mask.contiguous()
        ctx.causal = causal
        ctx.save_for_backward(weights)
        _call("softmax", scores.dtype, _sizes(scores, mask, causal), scores, weights, mask)
        return weights

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - by the decorator
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        slopes = gradients[0].to(weights.dtype).contiguous()
        found = torch.empty_like(weights)
        _call("softmax_back", weights.dtype, _sizes(weights, None, ctx.causal), weights, slopes, found)
        return found, None, None


def _sizes(scores: Tensor, mask: Tensor | None, causal: bool) -> tuple[int, ...]:
    batch, heads, queries, keys = scores.shape
    return (batch * heads * queries, heads, queries, keys, int(causal), *mask_strides(mask))


def _call(name: str, dtype: torch.dtype, sizes: tuple[int, ...], *tensors: Tensor | None) -> None:
    kernels = library()
    assert kernels is not None
    function = getattr(kernels, f"{name}_{str(dtype).removeprefix('torch.')}")
    places = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
    function(*places, words(sizes), torch.get_num_threads())

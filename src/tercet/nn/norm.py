"""Norms keep the size of the residual stream in hand.

layer: (x - mean) / sqrt(variance + eps) * weight + bias      Ba et al. (2016)
rms:   x / sqrt(mean of squares + eps) * weight               Zhang and Sennrich (2019)
"""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Norm = Literal["layer", "rms"]


def LayerNorm(width: int, *, eps: float = 1e-5, bias: bool = True) -> nn.Module:
    return nn.LayerNorm(width, eps=eps, bias=bias)


class RMSNorm(nn.RMSNorm):
    """In the dtype of its input: PyTorch has no fused kernel for a bfloat16 input and a float32 weight."""

    def __init__(self, width: int, *, eps: float = 1e-6, bias: bool = False) -> None:
        if bias:
            raise ValueError("an RMS norm has no bias; set norm_bias to false")
        super().__init__(width, eps=eps)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


NORMS: dict[Norm, Callable[..., nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm}

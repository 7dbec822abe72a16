"""Norms keep the size of the residual stream in hand.

layer: (x - mean) / sqrt(variance + eps) * weight + bias      Ba et al. (2016)
rms:   x / sqrt(mean of squares + eps) * weight               Zhang and Sennrich (2019)
"""

from collections.abc import Callable
from typing import Literal

from torch import nn

Norm = Literal["layer", "rms"]


def LayerNorm(width: int, *, eps: float = 1e-5, bias: bool = True) -> nn.Module:
    return nn.LayerNorm(width, eps=eps, bias=bias)


def RMSNorm(width: int, *, eps: float = 1e-6, bias: bool = False) -> nn.Module:
    if bias:
        raise ValueError("an RMS norm has no bias; set norm_bias to false")
    return nn.RMSNorm(width, eps=eps)


NORMS: dict[Norm, Callable[..., nn.Module]] = {"layer": LayerNorm, "rms": RMSNorm}

"""Norms, which give hidden states a fixed scale.

layer:      (x - mean) / sqrt(variance + eps) * weight + bias      Ba et al. (2016)
layer_std:  (x - mean) / (deviation + eps) * weight + bias         Rush, "The Annotated Transformer" (2018)
rms:        x / sqrt(mean of squares + eps) * weight               Zhang and Sennrich (2019)

The variance of `layer` is divided by D. The deviation of `layer_std` is the sample standard deviation, divided by
D - 1.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tercet.nn.specs import CustomNorm, Norm, NormName


def LayerNorm(width: int, *, eps: float = 1e-5, bias: bool = True) -> nn.Module:
    """Return PyTorch's layer norm, with the arguments of the other norms."""
    return nn.LayerNorm(width, eps=eps, bias=bias)


class StdLayerNorm(nn.Module):
    """Layer norm that divides by the sample standard deviation plus eps.

    Raises:
        ValueError: If the width is less than 2.
    """

    bias: nn.Parameter | None

    def __init__(self, width: int, *, eps: float = 1e-6, bias: bool = True) -> None:
        super().__init__()
        if width < 2:
            raise ValueError(f"norm=layer_std requires a width of at least 2: {width}; use norm=layer or norm=rms")
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.register_parameter("bias", nn.Parameter(torch.zeros(width)) if bias else None)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        x32 = x.float()  # float32 even in mixed precision, as in PyTorch's norms
        centered = x32 - x32.mean(-1, keepdim=True)
        variance = centered.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)
        deviation = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()  # sqrt has no gradient at 0
        normalized = (centered / (deviation + self.eps)).to(x.dtype) * self.weight.to(x.dtype)
        return normalized if self.bias is None else normalized + self.bias.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}, bias={self.bias is not None}"


class RMSNorm(nn.RMSNorm):
    """RMS norm whose weight is converted to the dtype of the input.

    PyTorch has no fused kernel for a bfloat16 input and a float32 weight.

    Raises:
        ValueError: If `bias` is True.
    """

    def __init__(self, width: int, *, eps: float = 1e-6, bias: bool = False) -> None:
        if bias:
            raise ValueError("an RMS norm has no bias; set norm_bias to false")
        super().__init__(width, eps=eps)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class JointRMSNorm(RMSNorm):
    """RMS norm over all heads of a token together, as one vector of H x K numbers.

    OLMo team, "2 OLMo 2 Furious" (2024), 3.2.
    """

    def forward(self, x: Float[Tensor, "*B H K"]) -> Float[Tensor, "*B H K"]:
        return super().forward(x.flatten(-2)).unflatten(-1, x.shape[-2:])


NORMS: dict[NormName, Callable[..., nn.Module]] = {"layer": LayerNorm, "layer_std": StdLayerNorm, "rms": RMSNorm}


def norm_factory(norm: Norm, d_model: int, *, eps: float, bias: bool) -> Callable[[], nn.Module]:
    """Return a factory of norms of width d_model, by the name of the norm or by a spec of another package."""
    if isinstance(norm, CustomNorm):
        return partial(norm.build, d_model=d_model, eps=eps, bias=bias)
    return partial(NORMS[norm], d_model, eps=eps, bias=bias)

"""Exercise 6: Layer norm and residual block.

A layer norm gives each token's vector the mean 0 and the variance 1, then scales and shifts its columns:

    layer_norm(x) = (x - mean) / sqrt(variance + eps) * weight + bias

Mean and variance are those of the D columns of one token. The variance is divided by D.

A residual connection adds the output of a sublayer, such as attention, to its input. The norm is before the sublayer
(GPT-2) or after the sum (the Transformer of 2017):

    pre_norm(x)  = x + sublayer(norm(x))
    post_norm(x) = norm(x + sublayer(x))

Shapes: B rows, T tokens, D width.
Do not use `nn.LayerNorm` or `torch.nn.functional.layer_norm`.
Replace each `raise NotImplementedError` by your code. Check it with `tercet learn check 6`.

Papers: Ba, Kiros and Hinton, "Layer Normalization" (2016); Xiong et al., "On Layer Normalization in the Transformer
Architecture" (2020).
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor


def layer_norm(
    x: Float[Tensor, "B T D"], weight: Float[Tensor, " D"], bias: Float[Tensor, " D"], eps: float = 1e-5
) -> Float[Tensor, "B T D"]:
    """Return the normalized vectors, scaled by `weight` and shifted by `bias`."""
    raise NotImplementedError


def pre_norm(
    x: Float[Tensor, "B T D"],
    sublayer: Callable[[Tensor], Tensor],
    weight: Float[Tensor, " D"],
    bias: Float[Tensor, " D"],
) -> Float[Tensor, "B T D"]:
    """Return a residual connection around `sublayer` with your layer norm before the sublayer."""
    raise NotImplementedError


def post_norm(
    x: Float[Tensor, "B T D"],
    sublayer: Callable[[Tensor], Tensor],
    weight: Float[Tensor, " D"],
    bias: Float[Tensor, " D"],
) -> Float[Tensor, "B T D"]:
    """Return a residual connection around `sublayer` with your layer norm after the sum."""
    raise NotImplementedError

"""A linear layer, x wᵀ + b, with optional weight-only quantization of a trained model.

    bf16   w rounded to bfloat16: 8 bits of precision, half the memory of float32
    int8   w ~ q s, with q in -127..127 and one scale s per row, max |w| / 127: a quarter of the memory of float32

Only the weights are quantized. They are converted to the dtype of the input before the product. The exception is the
CPU kernel for few rows, which multiplies int8 weights by inputs rounded to 16 bits, so that most of the work is exact
integer arithmetic. Decoding reads every weight once per token, so smaller weights are faster.

On a CPU, kernels compute most large products, with and without gradients. All other products are computed by
`torch.nn.functional.linear`.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tercet.nn import kernels

WeightDtype = Literal["bf16", "int8"]


def multiplied_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which PyTorch multiplies `x`: that of autocast if it is enabled, else that of `x`.

    A custom autograd.Function has to convert its inputs to this dtype, because autocast does not apply inside it.
    """
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class Linear(nn.Linear):
    """Linear layer whose weight can be quantized.

    Attributes:
        scale: (N) Factor of each row of an int8 weight, else None.
        quantized: True if the weight is quantized.
    """

    scale: Tensor | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.register_buffer("scale", None)
        self.quantized = False

    def forward(self, input: Float[Tensor, "*B K"]) -> Float[Tensor, "*B N"]:
        y = kernels.linear(input, self.weight, self.scale, self.bias)
        if y is not None:
            return y
        weight = self.dequantize(input.dtype) if self.quantized else self.weight
        return F.linear(input, weight, self.bias)

    @torch.no_grad()
    def quantize(self, dtype: WeightDtype) -> None:
        """Quantize the weight in place. The weight becomes a buffer, which cannot be trained."""
        weight = self.weight.float()
        if dtype == "int8":
            self.scale = weight.abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny) / 127
            weight = (weight / self.scale[:, None]).round().to(torch.int8)
        else:
            weight = weight.bfloat16()
        del self.weight  # other modules that share the weight, such as a tied embedding, keep the original
        self.register_buffer("weight", weight)
        self.quantized = True

    def dequantize(self, dtype: torch.dtype) -> Float[Tensor, "N K"]:
        """Return the weight as a matrix of this dtype, multiplied by its scales if it is int8."""
        return self.weight.to(dtype) if self.scale is None else self.weight.to(dtype) * self.scale[:, None].to(dtype)


def quantize(model: nn.Module, dtype: WeightDtype) -> None:
    """Quantize the weights of all `Linear` layers in place.

    Embeddings, vectors and plain `torch.nn.Linear` layers, such as a classifier, are not changed.

    Raises:
        ValueError: If the model is already quantized.
    """
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    if any(linear.quantized for linear in linears):
        raise ValueError("the model is already quantized; load it again")
    for linear in linears:
        linear.quantize(dtype)

"""A linear layer, x wT + b, as PyTorch has it; and its weights in fewer bits, for a model that has been trained.

    bf16   w to the nearest bfloat16: 8 bits of precision, half the memory
    int8   w ~ q s, with q in -127..127 and a number s for each row, max |w| / 127: a quarter of the memory

Only the weights are kept so ("weight-only" quantization). They are widened before they are multiplied, except by the
CPU's kernel for few rows: there int8 weights meet inputs that are rounded to 16 bits, so that most of the work is exact
arithmetic with whole numbers. To write a token every weight is read once, so fewer bits are faster; with gradients,
with many rows and on a GPU the formula is worked out as it stands here; or, to learn in bfloat16 on a CPU that has it,
by a kernel.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tercet.nn import kernels

WeightDtype = Literal["bf16", "int8"]


def multiplied_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which `x` is multiplied: autocast does not apply within a function of our own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class Linear(nn.Linear):
    """Attributes:
    scale: (N) what each row of an int8 weight is multiplied by, else None.
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
        """Keep the weight in fewer bits from now on. It is no parameter any more: it can't be trained."""
        weight = self.weight.float()
        if dtype == "int8":
            self.scale = weight.abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny) / 127
            weight = (weight / self.scale[:, None]).round().to(torch.int8)
        else:
            weight = weight.bfloat16()
        del self.weight  # what else holds it, as a tied embedding does, keeps it as it was
        self.register_buffer("weight", weight)
        self.quantized = True

    def dequantize(self, dtype: torch.dtype) -> Float[Tensor, "N K"]:
        """The weight that a quantized one stands for."""
        return self.weight.to(dtype) if self.scale is None else self.weight.to(dtype) * self.scale[:, None].to(dtype)


def quantize(model: nn.Module, dtype: WeightDtype) -> None:
    """Keep the matrices of all linear layers in fewer bits; embeddings and vectors stay as they are.

    Raises:
        ValueError: where they are already.
    """
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    if any(linear.quantized for linear in linears):
        raise ValueError("the model's weights are quantized already; load it anew")
    for linear in linears:
        linear.quantize(dtype)

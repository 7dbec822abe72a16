"""The feed-forward network, applied to each position separately: expand, activate, project back.

plain:  down(act(up(x)))                  Vaswani et al. (2017), equation 2
gated:  down(act(gate(x)) * up(x))        Shazeer, "GLU Variants Improve Transformer" (2020)

Dropout is optional and acts on the input of `down` in training.
"""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tercet.nn import kernels
from tercet.nn.linear import Linear
from tercet.nn.specs import Activation, ActivationName, CustomActivation


def relu_squared(x: Tensor) -> Tensor:
    """Square the ReLU: So et al., "Primer" (2021)."""
    return F.relu(x).square()


# Each of these functions calls a CPU kernel if one supports the tensor. They are defined at module level instead of as
# lambdas, so that models can be pickled.
def gelu(x: Tensor) -> Tensor:
    """Compute the exact GELU with erf: Hendrycks and Gimpel (2016), BERT."""
    y = kernels.activation(x, "gelu")
    return F.gelu(x) if y is None else y


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute the tanh approximation of GELU, as in GPT-2."""
    y = kernels.activation(x, "gelu_tanh")
    return F.gelu(x, approximate="tanh") if y is None else y


def silu(x: Tensor) -> Tensor:
    """Compute x sigmoid(x). A gated feed-forward network with this activation is a SwiGLU."""
    y = kernels.activation(x, "silu")
    return F.silu(x) if y is None else y


ACTIVATIONS: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "relu_squared": relu_squared,
}


def activation_function(activation: Activation) -> Callable[[Tensor], Tensor]:
    """Return the function by its name, or build it from a spec of another package."""
    return activation.build() if isinstance(activation, CustomActivation) else ACTIVATIONS[activation]


class FeedForward(nn.Module):
    """Two linear layers with an activation between them.

    Args:
        d_model: Width of the input and output.
        d_ff: Width of the hidden layer.
        activation: Name of the activation, or a spec of another package.
        gated: If True, a third linear layer is added: the activation is applied to its output, which then multiplies
            the output of `up`.
        bias: If True, the linear layers have biases.
        dropout: Dropout rate of the activations.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "gelu",
        gated: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up = Linear(d_model, d_ff, bias=bias)
        self.gate = Linear(d_model, d_ff, bias=bias) if gated else None
        self.down = Linear(d_ff, d_model, bias=bias)
        self.activation = activation_function(activation)
        self.dropout = dropout

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        h = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)  # (*B, F)
        if self.dropout and self.training:
            h = F.dropout(h, self.dropout)
        return self.down(h)  # (*B, D)

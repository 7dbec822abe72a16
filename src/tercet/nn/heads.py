"""BERT's layers between a hidden state and a score: Devlin et al. (2019).

transform:  norm(act(dense(x)))    before the unembedding, which scores masked tokens; in ModernBERT also before the
                                   classifier (Warner et al. 2024)
pooler:     tanh(dense(x))         of the first token, before the classifier; DistilBERT uses a ReLU
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tercet.nn.feedforward import activation_function
from tercet.nn.linear import Linear
from tercet.nn.specs import Activation, PoolerActivation

POOLER_ACTIVATIONS: dict[PoolerActivation, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu}


class Transform(nn.Module):
    """A dense layer of width d_model, an activation, and the norm that the factory `norm` returns."""

    def __init__(
        self, d_model: int, *, norm: Callable[[], nn.Module], activation: Activation = "gelu", bias: bool = True
    ) -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model, bias=bias)
        self.activation = activation_function(activation)
        self.norm = norm()

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return self.norm(self.activation(self.dense(x)))


class Pooler(nn.Module):
    """A dense layer of width d_model and an activation. The caller selects the hidden states of the first tokens."""

    def __init__(self, d_model: int, *, activation: PoolerActivation = "tanh", bias: bool = True) -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model, bias=bias)
        self.activation = POOLER_ACTIVATIONS[activation]

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return self.activation(self.dense(x))

"""How weights begin. Each scheme is a spec with one method that fills a finished model in place.

    Normal           N(0, std), the branches' last matrices N(0, std / sqrt(number of branches))   GPT-2 (2019)
    Xavier           U(+-sqrt(6 / (fan in + fan out))); embeddings N(0, 1/sqrt(D))                 Vaswani et al. (2017)
    ZeroProjections  N(0, gain / sqrt(fan in)), the branches' last matrices zero                   Zhang et al. (2019)

"The branches' last matrices" are those that write to the residual stream: attention's `out`, the network's `down`.
Norms begin at one, biases at zero, in every scheme.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tercet.nn.attention import Attention
from tercet.nn.feedforward import FeedForward


@dataclass(frozen=True, kw_only=True)
class Normal:
    kind: Literal["normal"] = "normal"
    std: float = 0.02

    def fill(self, model: nn.Module, generator: torch.Generator) -> None:
        last = list(_last_matrices(model))
        for weight in _matrices(model):
            weight.normal_(0.0, self.std, generator=generator)
        for weight in last:
            weight.normal_(0.0, self.std / math.sqrt(len(last)), generator=generator)


@dataclass(frozen=True, kw_only=True)
class Xavier:
    kind: Literal["xavier"] = "xavier"

    def fill(self, model: nn.Module, generator: torch.Generator) -> None:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
            if isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, module.embedding_dim**-0.5, generator=generator)


@dataclass(frozen=True, kw_only=True)
class ZeroProjections:
    kind: Literal["zero_projections"] = "zero_projections"
    gain: float = 0.5
    embedding_std: float = 0.02

    def fill(self, model: nn.Module, generator: torch.Generator) -> None:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, self.gain / math.sqrt(module.in_features), generator=generator)
            if isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, self.embedding_std, generator=generator)
        for weight in _last_matrices(model):
            weight.zero_()


Init = Normal | Xavier | ZeroProjections


@torch.no_grad()
def initialise(model: nn.Module, scheme: Init, *, seed: int) -> None:
    """Fill every parameter of `model` from a generator of its own: the global one is left alone."""
    scheme.fill(model, torch.Generator(next(model.parameters()).device).manual_seed(seed))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.weight.fill_(1.0)
        bias = getattr(module, "bias", None)
        if isinstance(bias, Tensor):
            bias.zero_()


def _matrices(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            yield module.weight


def _last_matrices(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, Attention):
            yield module.out.weight
        if isinstance(module, FeedForward):
            yield module.down.weight

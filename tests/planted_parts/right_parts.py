"""Parts without faults, of each kind, that `tercet doctor --check-part` accepts."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from tercet.nn import (
    Attention,
    CustomActivation,
    CustomAttention,
    CustomFeedForward,
    CustomNorm,
    CustomPosition,
    FeedForward,
    Linear,
)
from tercet.nn.positions import PositionScheme
from tercet.objectives import CustomObjective
from tercet.spec import LearningRate, ShareBelowOne, WeightDecay, spec
from tercet.training import CustomOptimizer, parameter_groups


@spec
class GatedAttention(CustomAttention):
    """The output is multiplied by a gate of the input (Qiu et al., 2025)."""

    def build(self, **settings: Any) -> Attention:
        return OutputGate(**settings)


class OutputGate(Attention):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.gate = Linear(settings["d_model"], settings["d_model"])

    def forward(self, x: Tensor, source: Tensor | None = None, **options: Any) -> Tensor:
        return super().forward(x, source, **options) * self.gate(x).sigmoid()


@spec
class LogDistance(CustomPosition):
    """A learned multiple of the logarithm of the distance is subtracted from the scores (Chi et al., 2022)."""

    def build(self, *, n_heads: int, **sizes: int) -> PositionScheme:
        return Kerple(n_heads)


class Kerple(PositionScheme):
    has_bias = True

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 2.0, n_heads))

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return -self.gain[:, None, None].exp() * torch.log1p(distance.to(self.gain.dtype))


@spec
class PartialRMS(CustomNorm):
    """The root mean square of the first quarter of a vector scales all of it (Zhang and Sennrich, 2019)."""

    def build(self, *, d_model: int, eps: float, bias: bool) -> nn.Module:
        return QuarterRMS(d_model, eps)


class QuarterRMS(nn.Module):
    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps, self.width = nn.Parameter(torch.ones(d_model)), eps, max(1, d_model // 4)

    def forward(self, x: Tensor) -> Tensor:
        squares = x[..., : self.width].float().square().mean(-1, keepdim=True)
        return (x * torch.rsqrt(squares + self.eps)).to(x.dtype) * self.weight.to(x.dtype)


@spec
class LearnedSwish(CustomActivation):
    """x sigmoid(beta x) with a learned beta (Ramachandran et al., 2017)."""

    def build(self) -> nn.Module:
        return Swish()


class Swish(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.beta.to(x.dtype) * x).sigmoid()


@spec
class TwoPaths(CustomFeedForward):
    """A network and a low-rank path, mixed element by element by fixed numbers."""

    def build(self, **settings: Any) -> nn.Module:
        return Mixed(settings)


class Mixed(nn.Module):
    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        width = settings["d_model"]
        self.network = FeedForward(**settings)
        self.down, self.up = Linear(width, 4, bias=False), Linear(4, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shares = torch.linspace(0, 1, x.shape[-1], device=x.device, dtype=x.dtype)
        return torch.lerp(self.network(x), self.up(F.gelu(self.down(x))), shares)


@spec
class Poly(CustomObjective):
    """Cross-entropy plus one minus the probability of the correct class (Leng et al., 2022)."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if logits.dim() != 2 or targets.dim() != 1:
            raise ValueError("this loss is defined for one correct token or label per row")
        nll = F.cross_entropy(logits, targets, reduction="none")
        return nll + 1 - (-nll).exp()


@spec
class Nesterov(CustomOptimizer):
    """Momentum that is corrected for its start at zero, with decoupled weight decay."""

    lr: LearningRate = 0.01
    beta: ShareBelowOne = 0.9
    weight_decay: WeightDecay = 0.1

    def build(self, model: nn.Module) -> Optimizer:
        groups = parameter_groups(model, weight_decay=self.weight_decay)
        return NesterovOptimizer(groups, {"lr": self.lr, "beta": self.beta})


class NesterovOptimizer(Optimizer):
    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state, beta = self.state[weight], group["beta"]
                if not state:
                    state["step"], state["momentum"] = torch.zeros(()), torch.zeros_like(weight)
                state["step"] += 1
                state["momentum"].lerp_(weight.grad, 1 - beta)
                ahead = state["momentum"].lerp(weight.grad, 1 - beta) / (1 - beta ** state["step"])
                weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(ahead, alpha=group["lr"])

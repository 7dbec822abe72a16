"""Cautious AdamW: steps against the gradient are left out (Liang et al., "Cautious Optimizers", 2024)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tercet.spec import LearningRate, ShareBelowOne, WeightDecay, spec
from tercet.training import CustomOptimizer, parameter_groups


@spec
class Cautious(CustomOptimizer):
    """AdamW whose step has no elements with another sign than the gradient."""

    lr: LearningRate = 1e-3
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.99
    weight_decay: WeightDecay = 0.1

    def build(self, model: nn.Module) -> Optimizer:
        groups = parameter_groups(model, weight_decay=self.weight_decay)
        return CautiousAdamW(groups, lr=self.lr, betas=(self.beta1, self.beta2))


class CautiousAdamW(Optimizer):
    def __init__(self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state |= {"step": torch.zeros(()), "mean": torch.zeros_like(weight)}
                    state["square"] = torch.zeros_like(weight)
                state["step"] += 1
                state["mean"].lerp_(weight.grad, 1 - beta1)
                state["square"].lerp_(weight.grad.square(), 1 - beta2)
                mean = state["mean"] / (1 - beta1 ** state["step"])
                square = state["square"] / (1 - beta2 ** state["step"])
                agrees = (mean * weight.grad > 0).to(weight.dtype)
                update = mean / (square.sqrt() + 1e-8) * agrees / agrees.mean().clamp(min=1e-3)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(update, alpha=group["lr"])

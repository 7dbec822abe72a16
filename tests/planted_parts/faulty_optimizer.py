"""Optimizers with faults that a user could write; each docstring names the fault."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tercet.spec import LearningRate, ShareBelowOne, WeightDecay, spec
from tercet.training import CustomOptimizer, parameter_groups


@spec
class Momentum(CustomOptimizer):
    """Settings of the optimizers below, which divide the weights into groups as Tercet does."""

    lr: LearningRate = 0.01
    beta: ShareBelowOne = 0.9
    weight_decay: WeightDecay = 0.1

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return list(parameter_groups(model, weight_decay=self.weight_decay))


@spec
class MomentumOnSelf(Momentum):
    """The momentum is in a dictionary of the optimizer instead of its state, so checkpoints do not contain it."""

    def build(self, model: nn.Module) -> Optimizer:
        return OwnDictionary(self.groups(model), {"lr": self.lr, "beta": self.beta})


class OwnDictionary(Optimizer):
    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.momentum = getattr(self, "momentum", {})
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    momentum = self.momentum.setdefault(weight, torch.zeros_like(weight))
                    momentum.lerp_(weight.grad, 1 - group["beta"])
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(momentum, alpha=group["lr"])


@spec
class PythonCount(Momentum):
    """The number of steps is an attribute of the optimizer, so that it starts at 0 when a run is resumed."""

    def build(self, model: nn.Module) -> Optimizer:
        return Corrected(self.groups(model), {"lr": self.lr, "beta": self.beta})


class Corrected(Optimizer):
    count = 0

    @torch.no_grad()
    def step(self, closure=None) -> None:
        self.count += 1
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                    momentum.lerp_(weight.grad, 1 - group["beta"])
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.sub_(momentum, alpha=group["lr"] / (1 - group["beta"] ** self.count))


@spec
class DecayOfDefaults(Momentum):
    """The weight decay of the settings is used for all groups, also for norms and biases, whose group has none."""

    def build(self, model: nn.Module) -> Optimizer:
        return SameDecay(self.groups(model), {"lr": self.lr, "decay": self.weight_decay})


class SameDecay(Optimizer):
    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.mul_(1 - group["lr"] * group["decay"]).sub_(weight.grad.sign(), alpha=group["lr"])


@spec
class ConstantRate(Momentum):
    """The learning rate is that of the settings, so the schedule has no effect."""

    def build(self, model: nn.Module) -> Optimizer:
        return OwnRate(self.groups(model), self.lr)


class OwnRate(Optimizer):
    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        self.lr = lr

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.mul_(1 - self.lr * group["weight_decay"]).sub_(weight.grad.sign(), alpha=self.lr)


@spec
class MatricesOnly(Momentum):
    """Norms and biases are in no group, so they are never trained."""

    def build(self, model: nn.Module) -> Optimizer:
        matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
        return torch.optim.SGD(matrices, lr=self.lr, momentum=self.beta, weight_decay=self.weight_decay)

"""Optimizers as settings, and which parameter gets what.

Weight decay is for matrices: norms, biases and other vectors never decay. Every parameter is in exactly one group, a
tied one once.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from tercet.spec import Epsilon, LearningRate, ShareBelowOne, WeightDecay, spec
from tercet.training.trainable import trainable_parameters

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@spec
class Adam:
    """Kingma and Ba (2015). No weight decay."""

    kind: Literal["adam"] = "adam"
    lr: LearningRate = 1e-3
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.999
    eps: Epsilon = 1e-8

    def build(self, model: "nn.Module") -> "Optimizer":
        from tercet.training.adamw import FusedAdamW

        return FusedAdamW(
            trainable_parameters(model),
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=0.0,
            fused=_fused(model),
        )


@spec
class AdamW:
    """Loshchilov and Hutter (2019): the decay is not part of the gradient."""

    kind: Literal["adamw"] = "adamw"
    lr: LearningRate = 1e-3
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.95
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.1

    def build(self, model: "nn.Module") -> "Optimizer":
        from tercet.training.adamw import FusedAdamW

        matrices = [p for p in trainable_parameters(model) if p.ndim >= 2]
        vectors = [p for p in trainable_parameters(model) if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return FusedAdamW(
            [group for group in groups if group["params"]],
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=_fused(model),
        )


@spec
class Muon:
    """Muon for the matrices inside the blocks; AdamW for embeddings, the head, norms and biases.

    `lr` and `weight_decay` are Muon's, `adam_lr` is for the rest, which does not decay.
    """

    kind: Literal["muon"] = "muon"
    lr: LearningRate = 0.015
    momentum: ShareBelowOne = 0.9
    weight_decay: WeightDecay = 0.0
    adam_lr: LearningRate = 0.006
    beta1: ShareBelowOne = 0.9
    beta2: ShareBelowOne = 0.95
    eps: Epsilon = 1e-8

    def build(self, model: "nn.Module") -> "Optimizer":
        from tercet.training.muon import MuonAdamW

        hidden, rest = hidden_matrices(model)
        groups = [
            {
                "params": hidden,
                "muon": True,
                "lr": self.lr,
                "momentum": self.momentum,
                "weight_decay": self.weight_decay,
            },
            {"params": rest, "lr": self.adam_lr, "betas": (self.beta1, self.beta2), "eps": self.eps},
        ]
        return MuonAdamW([group for group in groups if group["params"]])


OptimizerSpec = Adam | AdamW | Muon


def hidden_matrices(model: "nn.Module") -> "tuple[list[nn.Parameter], list[nn.Parameter]]":
    """The weights of the linear layers inside blocks, and all other parameters, of those that learn."""
    blocks = [module for name, module in model.named_modules() if name.endswith("blocks")]
    inside = {p: None for block in blocks for p in trainable_parameters(block) if p.ndim == 2}  # a set that keeps order
    return list(inside), [p for p in trainable_parameters(model) if p not in inside]


def base_rates(optimizer: "Optimizer") -> list[float]:
    """Each group's own learning rate, before any schedule."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def set_rates(optimizer: "Optimizer", base: Iterable[float], factor: float) -> None:
    groups: list[dict[str, Any]] = optimizer.param_groups
    for group, rate in zip(groups, base, strict=True):
        group["lr"] = rate * factor


def _fused(model: "nn.Module") -> bool:
    """One kernel for all parameters, where PyTorch has it."""
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in trainable_parameters(model))

"""Build optimizers from their settings.

Weight decay is never applied to norms, biases and other vectors. Each trainable parameter is in exactly one parameter
group, even if it is tied.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from tercet.training.optim.adamw import FusedAdamW
from tercet.training.optim.muon import MuonAdamW
from tercet.training.optim.specs import Adam, AdamW, Muon, OptimizerSpec
from tercet.training.optim.trainable import trainable_parameters

HIDDEN = ("blocks", "transform", "pooler")  # modules whose matrices map hidden states to hidden states


def build_optimizer(spec: OptimizerSpec, model: nn.Module) -> Optimizer:
    """Build the optimizer for the trainable parameters of `model`."""
    match spec:
        case Adam():
            groups = [{"params": trainable_parameters(model), "weight_decay": 0.0}]
            return _adamw(spec, model, groups)
        case AdamW():
            matrices = [p for p in trainable_parameters(model) if p.ndim >= 2]
            vectors = [p for p in trainable_parameters(model) if p.ndim < 2]
            groups = [
                {"params": matrices, "weight_decay": spec.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ]
            return _adamw(spec, model, groups)
        case Muon():
            return _muon(spec, model)


def _adamw(spec: Adam | AdamW, model: nn.Module, groups: list[dict[str, Any]]) -> Optimizer:
    return FusedAdamW(
        [group for group in groups if group["params"]],
        lr=spec.lr,
        betas=(spec.beta1, spec.beta2),
        eps=spec.eps,
        fused=_supports_fused(model),
    )


def _muon(spec: Muon, model: nn.Module) -> Optimizer:
    hidden, rest = hidden_matrices(model)
    groups = [
        {
            "params": hidden,
            "muon": True,
            "lr": spec.lr,
            "momentum": spec.momentum,
            "weight_decay": spec.weight_decay,
        },
        {"params": rest, "lr": spec.adam_lr, "betas": (spec.beta1, spec.beta2), "eps": spec.eps},
    ]
    return MuonAdamW([group for group in groups if group["params"]])


def hidden_matrices(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the trainable matrices between embeddings and output heads, and all other trainable parameters."""
    parts = [module for name, module in model.named_modules() if name.endswith(HIDDEN)]
    matrices = {p: None for part in parts for p in trainable_parameters(part) if p.ndim == 2}  # an ordered set
    return list(matrices), [p for p in trainable_parameters(model) if p not in matrices]


def base_rates(optimizer: Optimizer) -> list[float]:
    """Return the learning rate of each parameter group; must be called before `set_rates` changes them."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def set_rates(optimizer: Optimizer, base: Iterable[float], factor: float) -> None:
    """Set the learning rate of each parameter group to its base rate (see `base_rates`) times `factor`."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    for group, rate in zip(groups, base, strict=True):
        group["lr"] = rate * factor


def _supports_fused(model: nn.Module) -> bool:
    """Return whether PyTorch has a fused kernel for all trainable parameters."""
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda", "mps") for p in trainable_parameters(model))

"""Build optimizers from their settings.

Weight decay is never applied to norms, biases and other vectors. Each trainable parameter is in exactly one parameter
group, even if it is tied.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from tercet.config import UserError
from tercet.training.optim.adamw import FusedAdamW
from tercet.training.optim.muon import MuonAdamW
from tercet.training.optim.specs import Adam, AdamW, CustomOptimizer, Muon, OptimizerSpec
from tercet.training.optim.trainable import trainable_parameters

HIDDEN = ("blocks", "transform", "pooler")  # modules whose matrices map hidden states to hidden states
OUTPUT = ("unembedding.weight", "unembedding.bias")  # parameters of an output layer
CHECKED_CALLS = 4  # calls of a hook after which the state of an optimizer is no longer checked


def build_optimizer(spec: OptimizerSpec, model: nn.Module) -> Optimizer:
    """Build the optimizer for the trainable parameters of `model`."""
    match spec:
        case Adam():
            groups = [{"params": trainable_parameters(model), "weight_decay": 0.0}]
            return _adamw(spec, model, groups)
        case AdamW():
            return _adamw(spec, model, parameter_groups(model, weight_decay=spec.weight_decay))
        case Muon():
            return _muon(spec, model)
        case CustomOptimizer():
            optimizer = spec.build(model)
            _check_custom(spec, optimizer, model)
            return optimizer


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Return the trainable matrices of a model with weight decay, and its other trainable parameters without."""
    matrices = [p for p in trainable_parameters(model) if p.ndim >= 2]
    vectors = [p for p in trainable_parameters(model) if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _check_custom(spec: CustomOptimizer, optimizer: Optimizer, model: nn.Module) -> None:
    """Check that an optimizer of another package updates the trainable parameters, and has tensors as state.

    The state is checked after the first steps, before a checkpoint is written. One step may call the hook several
    times: if `step` calls that of its superclass, PyTorch may call the hook there too, before the state is complete.

    Raises:
        UserError: If a parameter is in no group, or in several.
    """
    ids = [id(p) for group in optimizer.param_groups for p in group["params"]]
    if sorted(ids) != sorted({id(p) for p in trainable_parameters(model)}):
        raise UserError(f"{spec.kind} must update each trainable parameter in exactly one group; use parameter_groups")

    calls = 0

    def check_state(stepped: Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == CHECKED_CALLS:
            handle.remove()
        for name, value in (item for state in stepped.state.values() for item in state.items()):
            if not isinstance(value, Tensor):
                raise UserError(
                    f"{spec.kind} has the state {name} of type {type(value).__name__}, which a checkpoint does not "
                    "contain; make it a tensor"
                )

    handle = optimizer.register_step_post_hook(check_state)


def _adamw(spec: Adam | AdamW, model: nn.Module, groups: list[dict[str, Any]]) -> Optimizer:
    return FusedAdamW(
        groups,
        lr=spec.lr,
        betas=(spec.beta1, spec.beta2),
        eps=spec.eps,
        fused=_supports_fused(model),
    )


def _muon(spec: Muon, model: nn.Module) -> Optimizer:
    hidden, rest = hidden_matrices(model)
    adamw = {"betas": (spec.beta1, spec.beta2), "eps": spec.eps}
    named = model.named_parameters(remove_duplicate=False) if spec.head_lr is not None else ()
    head = {p for name, p in named if name in OUTPUT}
    groups: list[dict[str, Any]] = [
        {
            "params": hidden,
            "muon": True,
            "lr": spec.lr,
            "momentum": spec.momentum,
            "weight_decay": spec.weight_decay,
        },
        {"params": [p for p in rest if p not in head], "lr": spec.adam_lr, **adamw},
        {"params": [p for p in rest if p in head], "lr": spec.head_lr, **adamw},
    ]
    if spec.adam_weight_decay:
        groups[1:] = [part for group in groups[1:] for part in _split_vectors(group, spec.adam_weight_decay)]
    return MuonAdamW([group for group in groups if group["params"]])


def _split_vectors(group: dict[str, Any], weight_decay: float) -> list[dict[str, Any]]:
    """Return a group as two: its vectors without weight decay, and its matrices with it."""
    vectors, matrices = ([p for p in group["params"] if (p.ndim >= 2) == large] for large in (False, True))
    return [{**group, "params": vectors}, {**group, "params": matrices, "weight_decay": weight_decay}]


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

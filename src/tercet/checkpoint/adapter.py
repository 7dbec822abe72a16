"""LoRA adapters in the format of the `peft` library: trained weights on top of a frozen base model.

    adapter_config.json         rank, alpha, the adapted layers, and the path of the base model
    adapter_model.safetensors   A and B of each layer, and fully trained weights, such as those of a classifier

Tensors are named after the modules of the model, with the prefix "base_model.model.". A run that trains an adapter
writes these two files to `best/` and `last/` instead of the weights, together with the other files of a model folder.
The base model is in `pretrained/`, next to `best/` and `last/`.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tercet.checkpoint.adapter_settings import check_settings
from tercet.checkpoint.find_model import ADAPTER
from tercet.checkpoint.run_record import PRETRAINED_COPY
from tercet.checkpoint.weights import first_names, read_tensors, unwrap_name, unwrap_names, write_tensors
from tercet.config import UserError
from tercet.messages import show
from tercet.models import AnyModel, AnySpec, build
from tercet.nn.linear import Linear
from tercet.nn.lora import lora_layers
from tercet.reading.bounded_json import read_json_file
from tercet.storage import write_atomically

CONFIG, WEIGHTS = ADAPTER
PREFIX = "base_model.model."
BASE = f"../{PRETRAINED_COPY}"  # path of the base model, relative to `best` or `last` of a run


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """Low-rank update of a linear layer's (N, K) weight: `scaling` times B A, with A (r, K), B (N, r) and rank r."""

    A: Tensor
    B: Tensor
    scaling: float

    def product(self) -> Tensor:
        """Return the whole update, including the scaling, as an (N, K) float32 matrix."""
        return self.B.float() @ self.A.float() * self.scaling


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter of a base model.

    Attributes:
        base: Path of the base model as written in adapter_config.json, relative to the adapter's folder or to the
            current directory; empty if missing.
        layers: Low-rank updates by the names of the adapted linear layers.
        full_weights: Trained tensors that replace those of the base model, by name, such as a classifier's.
        transposed: If True, the base model stores its matrices as (in, out), as GPT-2 does in `transformers`. Only used
            for writing (`fan_in_fan_out`).
        task_type: Task type of `peft`, such as "CAUSAL_LM", which selects the class that wraps the model of
            `transformers`; None for the general class. Only used for writing.
    """

    base: str
    layers: Mapping[str, LowRank]
    full_weights: Mapping[str, Tensor]
    transposed: bool = False
    task_type: str | None = None


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains an adapter instead of a model's weights."""
    return all((folder / name).is_file() for name in ADAPTER)


def is_foreign_adapter(folder: Path) -> bool:
    """Return whether a folder contains an adapter but no config.json, as `peft` writes it."""
    return is_adapter(folder) and not (folder / "config.json").is_file()


def adapter_of(model: nn.Module, state: Mapping[str, Tensor] | None = None, *, base: str = BASE) -> Adapter:
    """Return the adapter that consists of the trainable weights of a model with low-rank matrices.

    Args:
        model: Model to which `add_lora` has added low-rank matrices.
        state: Full tensors by name, as gathered from sharded training; by default those of the model.
        base: Path of the base model to write to adapter_config.json.
    """
    layers = {unwrap_name(name): layer for name, layer in lora_layers(model).items()}
    trainable = {unwrap_name(name) for name, parameter in model.named_parameters() if parameter.requires_grad}
    tensors = unwrap_names(model.state_dict() if state is None else state)
    low_ranks = {
        name: LowRank(A=tensors[f"{name}.lora_A"], B=tensors[f"{name}.lora_B"], scaling=layer.scaling)
        for name, layer in layers.items()
    }
    matrices = {f"{name}.{matrix}" for name in layers for matrix in ("lora_A", "lora_B")}
    return Adapter(
        base=base, layers=low_ranks, full_weights={name: tensors[name] for name in sorted(trainable - matrices)}
    )


@torch.no_grad()
def build_adapted_model(base: AnyModel, spec: AnySpec, adapter: Adapter, source: Path) -> AnyModel:
    """Return a model of `spec` with the weights of `base`, into which the adapter is merged.

    Args:
        base: Base model. If it already has this spec, it is changed in place and returned.
        spec: Spec of the adapted model, which may differ from that of `base`, for example in its heads.
        adapter: Adapter of the base model.
        source: Folder of the adapter, for error messages.

    Raises:
        UserError: If the adapter, the base and the spec do not match.
    """
    model = base
    if spec != base.spec:  # such as other heads, or another maximum length
        try:
            with torch.random.fork_rng(devices=[]):  # building torch's own layers draws from the global generator
                model = build(spec)
        except ValueError as error:
            raise UserError(f"{source}: {error}") from None
        base_state, model_state = base.state_dict(), model.state_dict()
        common_state = {
            name: base_state[name]
            for name in model_state
            if name in base_state and base_state[name].shape == model_state[name].shape
        }
        if missing := [name for name in model_state if name not in common_state and name not in adapter.full_weights]:
            raise UserError(f"{source}: neither the adapter nor its base model has {first_names(missing)}; train again")
        model.load_state_dict(common_state, strict=False)
    merge_adapter(model, adapter, source)
    return model


@torch.no_grad()
def merge_adapter(model: nn.Module, adapter: Adapter, source: Path) -> None:
    """Add each low-rank update to the weight of its layer in place, and copy the full weights.

    Args:
        model: Base model, without low-rank matrices.
        adapter: Adapter whose layers are named as in the model.
        source: Folder of the adapter, for error messages.

    Raises:
        UserError: If the model lacks a layer or full weight of the adapter, or has it with another shape.
    """
    weights, layers = model.state_dict(), {name: m for name, m in model.named_modules() if isinstance(m, Linear)}
    shapes = {name: (len(low_rank.B), low_rank.A.shape[1]) for name, low_rank in adapter.layers.items()}
    unknown = [
        *(name for name in shapes if name not in layers),
        *(name for name in adapter.full_weights if name not in weights),
    ]
    mismatched = [
        *(name for name, shape in shapes.items() if name in layers and tuple(layers[name].weight.shape) != shape),
        *(
            name
            for name, tensor in adapter.full_weights.items()
            if name in weights and weights[name].shape != tensor.shape
        ),
    ]
    if unknown or mismatched:
        problem = f"has no {first_names(unknown)}" if unknown else f"has another size in {first_names(mismatched)}"
        raise UserError(f"{source} does not fit this model, which {problem}; use the model that it was trained on")
    for name, low_rank in adapter.layers.items():
        weight = layers[name].weight
        weight.copy_(weight.float() + low_rank.product().to(weight.device))
    for name, tensor in adapter.full_weights.items():
        weights[name].copy_(tensor)


@torch.no_grad()
def fill_adapter(model: nn.Module, adapter: Adapter) -> None:
    """Copy an adapter into a model that has low-rank matrices on the same layers, and the same full weights."""
    layers, weights = lora_layers(model), model.state_dict()
    for name, low_rank in adapter.layers.items():
        layers[name].lora_A.copy_(low_rank.A)
        layers[name].lora_B.copy_(low_rank.B)
    for name, tensor in adapter.full_weights.items():
        weights[name].copy_(tensor)


def write_adapter(folder: Path, adapter: Adapter) -> None:
    """Write adapter_config.json and adapter_model.safetensors to `folder`. Raises like `write_atomically`."""
    ranks = {name: len(low_rank.A) for name, low_rank in adapter.layers.items()}
    alphas = {name: low_rank.scaling * len(low_rank.A) for name, low_rank in adapter.layers.items()}
    rank, alpha = (max(set(of.values()), key=list(of.values()).count) for of in (ranks, alphas))
    config = {
        "peft_type": "LORA",
        **({"task_type": adapter.task_type} if adapter.task_type else {}),
        "base_model_name_or_path": adapter.base,
        "r": rank,
        "lora_alpha": _whole_number(alpha),
        "target_modules": list(adapter.layers),
        "rank_pattern": {name: r for name, r in ranks.items() if r != rank},
        "alpha_pattern": {name: _whole_number(a) for name, a in alphas.items() if a != alpha},
        "modules_to_save": sorted({name.rpartition(".")[0] for name in adapter.full_weights}) or None,
        "lora_dropout": 0.0,  # dropout is only used in training
        "bias": "none",
        "fan_in_fan_out": adapter.transposed,
        "inference_mode": True,
    }
    write_atomically(folder / CONFIG, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())
    matrices = {
        f"{PREFIX}{name}.{matrix}.weight": tensor
        for name, low_rank in adapter.layers.items()
        for matrix, tensor in (("lora_A", low_rank.A), ("lora_B", low_rank.B))
    }
    write_tensors(folder / WEIGHTS, matrices | {PREFIX + name: tensor for name, tensor in adapter.full_weights.items()})


def read_adapter(folder: Path) -> Adapter:
    """Read the adapter in a folder.

    The layers of an adapter that `peft` wrote are named as in `transformers`. `import_adapter` renames them.

    Raises:
        UserError: If a file is damaged, or the adapter is an unsupported variant.
    """
    path = folder / CONFIG
    config = read_json_file(path)
    check_settings(config, path)
    pairs, full_weights = dict[str, dict[str, Tensor]](), dict[str, Tensor]()
    for name, tensor in read_tensors(folder / WEIGHTS).items():
        layer, _, matrix = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        if matrix in ("lora_A", "lora_B") and name.startswith(PREFIX) and tensor.ndim == 2:
            pairs.setdefault(layer, {})[matrix] = tensor
        elif "lora_" in name or not name.startswith(PREFIX):
            raise UserError(f"{folder / WEIGHTS}: {show(name)} is not part of a supported LoRA adapter")
        else:
            full_weights[name.removeprefix(PREFIX)] = tensor
    incomplete = [
        name for name, pair in pairs.items() if len(pair) != 2 or len(pair["lora_A"]) != pair["lora_B"].shape[1]
    ]
    if incomplete or not pairs:
        problem = (
            f"A and B of {first_names(incomplete)} do not belong together" if incomplete else "there are no A and B"
        )
        raise UserError(f"{folder / WEIGHTS}: {problem}; copy it again")
    layers = {
        name: LowRank(A=pair["lora_A"], B=pair["lora_B"], scaling=_scaling(config, name, len(pair["lora_A"]), path))
        for name, pair in pairs.items()
    }
    base = config.get("base_model_name_or_path")
    return Adapter(base=base if isinstance(base, str) else "", layers=layers, full_weights=full_weights)


def find_base(folder: Path, adapter: Adapter) -> Path:
    """Return the path of the base model of the adapter in `folder`.

    Raises:
        UserError: If it exists neither relative to `folder` nor to the current directory.
    """
    for path in (folder / adapter.base, Path(adapter.base)):
        if adapter.base and path.exists():
            return path
    raise UserError(
        f"base model of the adapter in {folder} not found: {show(adapter.base)}; copy the model to this path, or set "
        f"base_model_name_or_path in {CONFIG}"
    )


def _scaling(config: Mapping[str, Any], name: str, rank: int, path: Path) -> float:
    """Return the `scaling` of a layer: alpha/r, or alpha/√r if rank-stabilized (Kalajdzievski 2023)."""
    alpha: Any = config.get("lora_alpha", 8)
    patterns: Any = config.get("alpha_pattern") or {}
    # In `peft` each pattern is a regular expression for the end of a layer's name. For patterns of word characters and
    # dots, the comparison of suffixes below is equivalent.
    if not isinstance(patterns, dict) or any(re.search(r"[^\w.]", pattern) for pattern in patterns):
        raise UserError(
            f"{path}: alpha_pattern is {show(patterns)}, which Tercet does not support; use full names of layers"
        )
    alpha = next((value for pattern, value in patterns.items() if f".{name}".endswith(f".{pattern}")), alpha)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise UserError(f"{path}: lora_alpha is {show(alpha)}; put back the number of the trained adapter")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _whole_number(value: float) -> int | float:
    """Return a whole number as an int, as `peft` writes it: 16, not 16.0."""
    return int(value) if value == int(value) else value

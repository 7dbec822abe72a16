"""What a sharded checkpoint has in its pieces: tensors under one name each, and how they are read again."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

Checkpoint = dict[str, Any]  # Lightning's
WEIGHTS, OPTIMIZER = "weights.", "optimizer."  # before the names of tensors


def flatten_checkpoint(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], Checkpoint]:
    """The tensors of weights and optimizer by their names, and the rest."""
    (optimizer,) = checkpoint["optimizer_states"]
    tensors = {WEIGHTS + name: x for name, x in checkpoint["state_dict"].items()}
    for name, state in optimizer["state"].items():
        tensors |= {f"{OPTIMIZER}{name}.{key}": x for key, x in state.items()}
    groups = {"state": {}, "param_groups": optimizer["param_groups"]}
    return tensors, {**checkpoint, "state_dict": {}, "optimizer_states": [groups]}


def unflatten_checkpoint(tensors: dict[str, Tensor], rest: Checkpoint) -> Checkpoint:
    """The inverse of `flatten_checkpoint`."""
    weights = {name.removeprefix(WEIGHTS): x for name, x in tensors.items() if name.startswith(WEIGHTS)}
    state: dict[str, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        if name.startswith(OPTIMIZER):
            parameter, _, key = name.removeprefix(OPTIMIZER).rpartition(".")
            state.setdefault(parameter, {})[key] = x
    groups = rest["optimizer_states"][0]["param_groups"]
    return {**rest, "state_dict": weights, "optimizer_states": [{"state": state, "param_groups": groups}]}


def has_shards(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def load_full_checkpoint(folder: Path, rest: Checkpoint) -> Checkpoint:
    """A checkpoint that was saved in pieces, for a whole model."""
    tensors = load_sharded_tensors(folder, lambda name, size, dtype: torch.empty(size, dtype=dtype))
    return unflatten_checkpoint(tensors, rest)


def load_sharded_tensors(folder: Path, place: Callable[[str, torch.Size, torch.dtype], Tensor]) -> dict[str, Tensor]:
    """All that was saved, or of a `DTensor` this rank's piece, whatever pieces it was saved in.

    Args:
        place: by name, shape and type, where it goes.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    saved = reader.read_metadata().state_dict_metadata
    tensors = {name: place(name, x.size, x.properties.dtype) for name, x in cast(Any, saved).items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each rank reads for itself, as is meant
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors

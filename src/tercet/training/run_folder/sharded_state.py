"""The tensors of a sharded checkpoint: flattened under unique names, and read back."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tercet.messages import shorten
from tercet.reading.bounded_json import check_header
from tercet.reading.files import check_regular_file

Checkpoint = dict[str, Any]  # in Lightning's format
MAX_SHARDS = 1 << 16  # one per rank
WEIGHTS, OPTIMIZER = "weights.", "optimizer."  # prefixes of tensor names


def flatten_checkpoint(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], Checkpoint]:
    """Return the tensors of weights and optimizer by name, and the checkpoint without these tensors.

    The names are `weights.NAME` and `optimizer.PARAMETER.KEY`.
    """
    (optimizer,) = checkpoint["optimizer_states"]
    tensors = {WEIGHTS + name: x for name, x in checkpoint["state_dict"].items()}
    for name, state in optimizer["state"].items():
        tensors |= {f"{OPTIMIZER}{name}.{key}": x for key, x in state.items()}
    groups = {"state": {}, "param_groups": optimizer["param_groups"]}
    return tensors, {**checkpoint, "state_dict": {}, "optimizer_states": [groups]}


def unflatten_checkpoint(tensors: dict[str, Tensor], rest: Checkpoint) -> Checkpoint:
    """Return the checkpoint that `flatten_checkpoint` separates into `tensors` and `rest`."""
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
    """Read a sharded checkpoint, and return it with whole weights and optimizer tensors on the CPU.

    Args:
        folder: Folder of the checkpoint.
        rest: Checkpoint without tensors, from `state.ckpt`.
    """
    tensors = load_sharded_tensors(folder, lambda name, size, dtype: torch.empty(size, dtype=dtype))
    return unflatten_checkpoint(tensors, rest)


def read_shard_shapes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and dtype of each whole tensor in the shards of a checkpoint, by name.

    Raises:
        ValueError: If there are too many shards, a shard is not a complete safetensors file, or the shards of a tensor
            do not cover it exactly once.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    paths = sorted(folder.glob("*.safetensors"))
    if len(paths) > MAX_SHARDS:
        raise ValueError(f"it has {len(paths):,} shards; the maximum is {MAX_SHARDS:,}")
    for path in paths:
        check_regular_file(path)
        try:
            check_header(path)
        except ValueError as error:
            raise ValueError(f"{path.name} is not a complete safetensors file ({shorten(error)})") from None
    try:
        metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except Exception as error:  # damaged metadata makes the reader raise KeyError, TypeError and others
        raise ValueError(f"its shards cannot be read ({shorten(error)})") from None
    shapes: dict[str, tuple[torch.Size, torch.dtype]] = {}
    for name, tensor in cast("dict[str, Any]", metadata).items():
        boxes = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in tensor.chunks]
        if not _cover(tuple(tensor.size), boxes):
            raise ValueError(f"its shards of {shorten(ascii(name), 80)} do not cover the tensor")
        shapes[name] = tensor.size, tensor.properties.dtype
    return shapes


def _cover(size: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Return whether boxes form a grid that covers a tensor of the given size exactly once.

    Each box is a pair of an offset and an extent, both with one number per dimension.
    """
    boxes = [box for box in boxes if 0 not in box[1]]
    if any(len(offset) != len(size) for offset, _ in boxes):
        return False
    n_boxes = 1
    for dim, length in enumerate(size):
        intervals = sorted({(offset[dim], offset[dim] + extent[dim]) for offset, extent in boxes})
        if [0, *(end for _, end in intervals)] != [*(start for start, _ in intervals), length]:
            return False
        n_boxes *= len(intervals)
    return len(set(boxes)) == len(boxes) == n_boxes


def load_sharded_tensors(folder: Path, place: Callable[[str, torch.Size, torch.dtype], Tensor]) -> dict[str, Tensor]:
    """Read the tensors of a sharded checkpoint, whatever the sharding of its files.

    For a `DTensor`, only the part of this rank is read.

    Args:
        folder: Folder of the checkpoint.
        place: Function from name, shape and dtype of a whole tensor to the tensor that receives the data.

    Returns:
        Tensors from `place` with the data, by name.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    metadata = reader.read_metadata().state_dict_metadata
    tensors = {name: place(name, x.size, x.properties.dtype) for name, x in cast(Any, metadata).items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # intended: each rank reads separately
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors

"""A model's weights as one safetensors file, in which a tied tensor is stored once, under its first name.

Ties are determined from the model, not from the memory of the tensors, since a state gathered from several machines
contains copies.
"""

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from tercet.config import UserError
from tercet.messages import shorten
from tercet.models import AnyModel, build_meta
from tercet.reading.bounded_json import check_header
from tercet.reading.files import check_regular_file
from tercet.storage import write_atomically

# Parts of names that are added by wrappers (torch.compile, DDP, FSDP, activation checkpointing).
WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def write_weights(path: Path, model: nn.Module, state: Mapping[str, Tensor] | None = None) -> None:
    """Write the weights of a model, which may be on any device and wrapped (`WRAPPERS`).

    Args:
        path: File to write.
        model: The model.
        state: Full tensors by name to write instead of the model's. The further names of tied tensors may be missing.

    Raises:
        ValueError: If `state` has other names than the model.
        UserError: If the file cannot be written.
    """
    expected = unwrap_names(model.state_dict())
    tied = tied_names(model)
    tensors = expected if state is None else unwrap_names(state)
    missing, unexpected = set(expected) - set(tensors) - set(tied), set(tensors) - set(expected)
    if missing or unexpected:
        raise ValueError(f"state does not fit the model: missing {sorted(missing)}, unknown {sorted(unexpected)}")
    write_tensors(path, {name: tensor for name, tensor in tensors.items() if name not in tied})


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, from any device. They must not share memory.

    Raises:
        UserError: If the file cannot be written.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # Only one key of metadata: the library writes several in random order, so equal models would give different files.
    write_atomically(path, safetensors.torch.save(plain, metadata={"format": "pt"}))


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters and buffers by name; each tied one occurs once, under its first name."""
    tied = tied_names(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def read_weights(path: Path, model: nn.Module) -> None:
    """Fill `model`, which must not be wrapped, with the tensors of a file. Tied tensors stay tied.

    Raises:
        UserError: If the file is damaged, or its tensors do not match the model.
    """
    check_weights(path, model)
    tensors = read_tensors(path)
    # Further names of a tied tensor may be missing in the file. The tensor is then filled under its first name.
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in tensors:
                tensor.copy_(tensors[name])


def check_described(model: AnyModel) -> None:
    """Check that the spec of a model describes all of its tensors, because a model folder contains no code.

    Raises:
        ValueError: If the model has other tensors, such as those of a module that was added to it.
    """
    names = unwrap_names(model.state_dict()).keys()
    expected = build_meta(model.spec, n_tensors=len(names)).state_dict().keys()
    if others := sorted(names ^ expected):
        raise ValueError(
            f"the spec of the model does not describe these tensors: {shorten(', '.join(others))}; name a custom part "
            "in the spec, or save model.state_dict()"
        )


def check_weights(path: Path, model: nn.Module) -> None:
    """Compare the names and shapes in a file with those of a model, which may be on the meta device.

    Raises:
        UserError: If the file is damaged, or its tensors do not match the model.
    """
    tensors = read_tensors(path)
    model_tensors = model.state_dict()
    tied = tied_names(model)
    missing = [name for name in model_tensors if name not in tensors and name not in tied]
    unexpected = [name for name in tensors if name not in model_tensors]
    shapes = [name for name in tensors if name in model_tensors and tensors[name].shape != model_tensors[name].shape]
    if missing or unexpected or shapes:
        mistakes = [
            *([f"{first_names(missing)} missing"] if missing else []),
            *([f"{first_names(unexpected)} unknown"] if unexpected else []),
            *(
                f"{name} has shape {shape_of(tensors[name])}, but the config requires {shape_of(model_tensors[name])}"
                for name in shapes[:2]
            ),
        ]
        raise UserError(
            f"{path} does not match its config.json: {'; '.join(mistakes)}; "
            "put back the config.json that was saved with it"
        )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a safetensors file by name, on the CPU.

    Raises:
        UserError: If the file cannot be read, is damaged, or contains a tensor without elements.
    """
    check_regular_file(path)
    try:
        check_header(path)
        tensors = safetensors.torch.load_file(path, device="cpu")
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        reason = shorten(error)
        raise UserError(
            f"{path} is not a complete safetensors file ({reason}); copy it again, or train again"
        ) from None
    if empty := [name for name, tensor in tensors.items() if not tensor.numel()]:  # any size in 0 bytes
        raise UserError(f"{path}: {first_names(empty)} is empty; copy it again, or train again")
    return tensors


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return {further name: first name} of all tied parameters, without the parts of names that wrappers add."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first_name = first.setdefault(id(parameter), name)
        if first_name != name:
            tied[unwrap_name(name)] = unwrap_name(first_name)
    return tied


def unwrap_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by their names in the model itself, without the parts that wrappers add (`WRAPPERS`)."""
    return {unwrap_name(name): tensor for name, tensor in state.items()}


def unwrap_name(name: str) -> str:
    """Return the name of a tensor in the model itself, without the parts that wrappers add (`WRAPPERS`)."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def first_names(names: list[str]) -> str:
    """Return the first two names, and the number of further ones, for a message: "a, b and 3 more"."""
    suffix = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(shorten(name) for name in names[:2]) + suffix


def shape_of(tensor: Tensor) -> str:
    """Return the shape of a tensor for a message, such as "2x3"; "()" for a single number."""
    return "x".join(map(str, tensor.shape)) or "()"

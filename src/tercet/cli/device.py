"""The device and weight precision of a trained model."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tercet.models import AnyModel


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", metavar="NAME", default="auto", help="device: auto, cpu, cuda, cuda:N or mps (default: auto)"
    )


def add_quantize(add: Callable[..., Any], *, on_gpu: str = "bf16") -> None:
    """Add the flag --quantize, whose value is passed to `place_model`.

    Args:
        add: `add_argument` of a parser or group.
        on_gpu: Default on a GPU, "bf16" or "none", for the help.
    """
    add(
        "--quantize", choices=("bf16", "int8", "none"),
        help="store the weights in fewer bits, to save memory and time (default: none"
        + (")" if on_gpu == "none" else f"; {on_gpu} on a GPU, except for encoders)"),
    )  # fmt: skip


def place_model(model: "AnyModel", device: "torch.device", narrow: str | None) -> None:
    """Move a model to a device, and store its weights in fewer bits if requested.

    On a CUDA GPU that supports bfloat16, "bf16" and "int8" also compute in bfloat16, and int8 weights are converted to
    it in each forward pass. Elsewhere, only the weights of linear layers are quantized.

    Args:
        model: Model, which is changed in place.
        device: Device to move the model to.
        narrow: "bf16", "int8" or "none". None means "bf16" on a CUDA GPU that supports it, except for encoders, and
            "none" otherwise.
    """
    import torch

    from tercet.nn import quantize

    model.to(device)
    use_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if narrow is None and use_bf16 and model.spec.family != "encoder-only":
        narrow = "bf16"
    if use_bf16 and narrow in ("bf16", "int8"):
        model.to(torch.bfloat16)
    if narrow == "int8" or (narrow == "bf16" and not use_bf16):
        quantize(model, narrow)


def select_device(name: str, *, models: Iterable[str | Path] = ()) -> "torch.device":
    """Return the device called `name`.

    Args:
        name: "cpu", "cuda", "cuda:N", "mps", or "auto" for the first of cuda, mps and cpu that this machine has.
        models: Folders and files of models that the caller will load. Paths without a model are rejected before torch
            is imported, which takes seconds.

    Raises:
        UserError: If this machine does not have the device, or a path is not a model.
    """
    from tercet.checkpoint.find_model import find_model
    from tercet.config import UserError, suggest
    from tercet.lazy_exports import paused_collector

    kinds = ("cpu", "cuda", "mps")
    if name != "auto" and name.partition(":")[0] not in kinds:
        raise UserError(f"unknown device: {name}{suggest(name, ['auto', *kinds])}")
    for path in models:
        find_model(Path(path))
    with paused_collector():
        import torch

    devices = ["cpu", *(["mps"] if torch.backends.mps.is_available() else [])]
    if torch.cuda.is_available():
        devices += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if name == "auto":
        return torch.device("cuda" if "cuda" in devices else devices[-1])
    if name not in devices:
        raise UserError(f"device not available: {name}; choose one of {', '.join(devices)}")
    return torch.device(name)

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
    """Add the flag whose value `place_model` takes.

    Args:
        add: `add_argument` of a parser or group.
        on_gpu: Precision of the weights on a GPU if the flag is not passed.
    """
    add(
        "--quantize", choices=("bf16", "int8", "none"),
        help="weights in fewer bits, for less memory and more speed (default: none"
        + (")" if on_gpu == "none" else f" on a CPU and for encoders, otherwise {on_gpu} on a GPU)"),
    )  # fmt: skip


def place_model(model: "AnyModel", device: "torch.device", narrow: str | None) -> None:
    """Move a model to the device, and quantize its weights if requested.

    On a GPU, "bf16" and "int8" compute in bfloat16; int8 weights are widened in each forward pass. The default there is
    "bf16", except for encoders, which keep their precision.

    Args:
        model: The model.
        device: The device.
        narrow: "bf16", "int8", "none", or None for the default of the device.
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
    """Return the device called `name`; `auto` selects a GPU if there is one.

    Args:
        name: Name of the device.
        models: Model folders and files to open afterwards. Invalid ones are rejected before torch is imported.

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

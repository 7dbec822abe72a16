"""Where a trained model runs, and in how many bits its weights are kept."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from tercet.models import AnyModel


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", metavar="NAME", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)"
    )


def add_quantize(add: Callable[..., Any], *, on_gpu: str = "bf16") -> None:
    """Add the flag for `place_model`.

    Args:
        add: `add_argument` of a parser or group.
        on_gpu: Weights on a GPU if the flag is not given.
    """
    add(
        "--quantize", choices=("bf16", "int8", "none"),
        help="keep the weights in fewer bits: less memory, faster "
        + ("(default: none)" if on_gpu == "none" else f"(default: none on a CPU, {on_gpu} on a GPU)"),
    )  # fmt: skip


def place_model(model: "AnyModel", device: "torch.device", narrow: str | None) -> None:
    """Move a model to the device that uses it, and keep its weights in fewer bits if wanted.

    On a GPU with fewer bits everything is computed in bfloat16, to which int8 weights are widened in each pass. The
    default there is "bf16" for a model that writes; an encoder keeps its precision.

    Args:
        model: The model.
        device: The device.
        narrow: "bf16", "int8", "none", or None for the device's default.
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
    """The device called `name`; `auto` takes a GPU if there is one.

    Args:
        models: folders and files that are to be opened. What is none of a model is refused before torch is imported.

    Raises:
        UserError: where this machine does not have the device, or something is no model.
    """
    from tercet.checkpoint.find_model import find_model
    from tercet.config import UserError, suggest
    from tercet.lazy_exports import paused_collector

    kinds = ("cpu", "cuda", "mps")
    if name != "auto" and name.partition(":")[0] not in kinds:
        raise UserError(f"--device {name} is unknown{suggest(name, ['auto', *kinds])}")
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
        raise UserError(f"--device {name} is not on this machine; there is: {', '.join(devices)}")
    return torch.device(name)

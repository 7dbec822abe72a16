"""Where a trained model runs, and in how many bits its weights are kept."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", metavar="NAME", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)"
    )


def add_quantize(add: Callable[..., Any]) -> None:
    add(
        "--quantize", choices=("bf16", "int8"),
        help="keep the weights in fewer bits: less memory, faster on a CPU (default: as they were trained)",
    )  # fmt: skip


def pick(name: str, *, models: Iterable[str | Path] = ()) -> "torch.device":
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

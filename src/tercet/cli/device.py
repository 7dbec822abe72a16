"""Where a trained model runs, and in how many bits its weights are kept."""

import argparse
from collections.abc import Callable
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


def pick(name: str) -> "torch.device":
    """The device called `name`; `auto` takes a GPU if there is one.

    Raises:
        UserError: where this machine does not have it.
    """
    import torch

    from tercet.config import UserError, suggest

    devices = ["cpu", *(["mps"] if torch.backends.mps.is_available() else [])]
    if torch.cuda.is_available():
        devices += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if name == "auto":
        return torch.device("cuda" if "cuda" in devices else devices[-1])
    if name not in devices:
        kinds = ("cpu", "cuda", "mps")
        why = (
            "is not on this machine"
            if name.partition(":")[0] in kinds
            else f"is unknown{suggest(name, ['auto', *kinds])}"
        )
        raise UserError(f"--device {name} {why}; there is: {', '.join(devices)}")
    return torch.device(name)

"""Functions of tensors as operators of PyTorch's: `torch.compile` takes them as they are, autograd knows their slopes.

As `torch.library.custom_op` does it, less what that asks at each call: 2 us instead of 7, and a small model calls some
sixty in a step of 13 ms.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
LIBRARY = torch.library.Library("tercet", "FRAGMENT")


def operator(name: str, places: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function the operator `tercet::name`, for CPUs. It changes none of its tensors and returns none of them.

    Args:
        places: a function of the same arguments: results of the same shapes and strides, whatever is in them.
    """

    def register(body: Callable[P, R]) -> Callable[P, R]:
        LIBRARY.define(name + torch.library.infer_schema(body, mutates_args=()), tags=(torch.Tag.pt2_compliant_tag,))
        LIBRARY.impl(name, body, "CPU")
        torch.library.register_fake(f"tercet::{name}", places, lib=LIBRARY)
        return cast(Callable[P, R], getattr(torch.ops.tercet, name).default)

    return register


def differentiate(name: str, keep: Callable[..., None], gradients: Callable[..., tuple[Tensor | None, ...]]) -> None:
    """Tell autograd the slopes of `tercet::name`.

    Args:
        keep: (ctx, inputs, output): keeps what the way back needs.
        gradients: (ctx, the slopes of each result): those of each input, None where it has none.
    """
    torch.library.register_autograd(f"tercet::{name}", gradients, setup_context=cast(Any, keep), lib=LIBRARY)

"""Functions of tensors as operators of PyTorch's: `torch.compile` takes them as they are, autograd knows their
gradients.

As `torch.library.custom_op` does it, less what that asks at each call: 2 us instead of 7, and a small model calls some
sixty in a step of 13 ms. Gradients told by `register_autograd` would be asked for in every call again, 6 us more, also
within a compiled graph, which knows them.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
LIBRARY = torch.library.Library("tercet", "FRAGMENT")


def operator(name: str, fake: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function the operator `tercet::name`, for CPUs. It changes none of its tensors and returns none of them.

    Args:
        fake: a function of the same arguments: results of the same shapes and strides, whatever is in them.
    """

    def register(body: Callable[P, R]) -> Callable[P, R]:
        LIBRARY.define(name + torch.library.infer_schema(body, mutates_args=()), tags=(torch.Tag.pt2_compliant_tag,))
        LIBRARY.impl(name, body, "CPU")
        torch.library.register_fake(f"tercet::{name}", fake, lib=LIBRARY)
        return cast(Callable[P, R], getattr(torch.ops.tercet, name).default)

    return register


def differentiable(
    operator: Callable[P, R], setup_context: Callable[..., None], backward: Callable[..., tuple[Tensor | None, ...]]
) -> Callable[P, R]:
    """The operator with gradients that autograd knows.

    Args:
        setup_context: (ctx, inputs, output): saves what the backward pass needs.
        backward: (ctx, the gradient of each result): those of each input, None where it has none.
    """

    call = cast(Any, operator)

    def forward(*inputs: Any) -> Any:
        return call(*inputs)

    methods = {"forward": forward, "setup_context": setup_context, "backward": backward}
    function = type(
        str(operator), (torch.autograd.Function,), {name: staticmethod(method) for name, method in methods.items()}
    )
    return cast(Any, function).apply

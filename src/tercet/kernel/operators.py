"""Functions of tensors as operators of PyTorch's: `torch.compile` takes them as they are, autograd knows their slopes.

As `torch.library.custom_op` does it, less what that asks at each call: 2 us instead of 7, and a small model calls some
sixty in a step of 13 ms. Slopes told by `register_autograd` would be asked for in every call again, 6 us more, also
within a compiled graph, which knows them.
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


def differentiable(
    operator: Callable[P, R], keep: Callable[..., None], gradients: Callable[..., tuple[Tensor | None, ...]]
) -> Callable[P, R]:
    """The operator with slopes that autograd knows.

    Args:
        keep: (ctx, inputs, output): keeps what the way back needs.
        gradients: (ctx, the slopes of each result): those of each input, None where it has none.
    """

    call = cast(Any, operator)

    def there(*inputs: Any) -> Any:
        return call(*inputs)

    parts = {"forward": there, "setup_context": keep, "backward": gradients}
    named = type(str(operator), (torch.autograd.Function,), {name: staticmethod(part) for name, part in parts.items()})
    return cast(Any, named).apply

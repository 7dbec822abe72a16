"""Functions of tensors as operators of PyTorch's: `torch.compile` takes them as they are, autograd knows their
gradients.

As `torch.library.custom_op` does it, less what that asks at each call: 2 us instead of 7, and a small model calls some
sixty in a step of 13 ms. Gradients told by `register_autograd` would be asked for in every call again, 6 us more, also
within a compiled graph, which knows them.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")
LIBRARY = torch.library.Library("tercet", "FRAGMENT")


def operator(
    name: str, fake: Callable[P, R], *, mutates: Sequence[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function the operator `tercet::name`, for CPUs. It returns none of its tensors.

    By itself it has no gradients, and refuses tensors that want some; `differentiable` gives it those it has.

    Args:
        fake: a function of the same arguments: results of the same shapes and strides, whatever is in them.
        mutates: the arguments that it changes.
    """

    def register(body: Callable[P, R]) -> Callable[P, R]:
        @wraps(body)
        def checked_call(*args: P.args, **kwargs: P.kwargs) -> R:
            if cast(Any, forward_ad)._current_level >= 0:
                raise NotImplementedError(f"tercet::{name} has no derivative in forward mode")
            if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
                raise NotImplementedError(f"tercet::{name} has no gradient by itself; call it within torch.no_grad()")
            return body(*args, **kwargs)

        @wraps(fake)
        def fake_on_one_device(*args: P.args, **kwargs: P.kwargs) -> R:
            devices = {x.device.type for x in args if isinstance(x, Tensor)}
            if len(devices) > 1:  # or what is made for one that is here would be returned, with anything in it
                raise ValueError(f"tercet::{name} takes tensors of one device, not of {', '.join(sorted(devices))}")
            return fake(*args, **kwargs)

        schema = torch.library.infer_schema(body, mutates_args=mutates)
        LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        LIBRARY.impl(name, checked_call, "CPU")
        torch.library.register_fake(f"tercet::{name}", fake_on_one_device, lib=LIBRARY)
        return cast(Callable[P, R], getattr(torch.ops.tercet, name).default)

    return register


def differentiable(
    operator: Callable[P, R], setup_context: Callable[..., None], backward: Callable[..., tuple[Tensor | None, ...]]
) -> Callable[P, R]:
    """The operator with gradients that autograd knows. Gradients of those are refused.

    Args:
        setup_context: (ctx, inputs, output): saves what the backward pass needs.
        backward: (ctx, the gradient of each result): those of each input, None where it has none.
    """

    call = cast(Any, operator)

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = call(*inputs)
        setup_context(ctx, inputs, output)  # a method of that name would be asked for its signature at each call: 30 us
        return output

    def backward_once(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # compiled functions refuse it themselves
            return backward(ctx, *grad_outputs)
        with torch.no_grad():
            gradients = backward(ctx, *grad_outputs)
        return reject_second_derivative(call.name(), gradients, (*ctx.saved_tensors, *grad_outputs))

    methods = {"forward": forward, "backward": backward_once}
    function = type(
        str(operator), (torch.autograd.Function,), {name: staticmethod(method) for name, method in methods.items()}
    )
    return cast(Any, function).apply


def reject_second_derivative(
    name: str, gradients: Sequence[Tensor | None], sources: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """These gradients, which depend on `sources` in a way that autograd is not told: it learns that they do, and who
    differentiates them once more gets an error in place of a part of the truth."""
    return tuple(None if x is None else cast(Any, _OnceDifferentiable).apply(name, x, *sources) for x in gradients)


class _OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, gradient: Tensor, *_: Tensor | None) -> Tensor:
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError(
            f"{ctx.name} has no second derivative (it is once_differentiable); with TERCET_KERNEL=off in the "
            "environment PyTorch works it out"
        )

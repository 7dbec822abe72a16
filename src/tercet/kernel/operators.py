"""Register functions of tensors as PyTorch operators, which `torch.compile` and autograd support.

An operator is equivalent to one of `torch.library.custom_op` but without its checks: a call takes 2 us instead of 7. A
training step of a small model has about sixty calls and takes 13 ms. Gradients are not added with `register_autograd`,
which would look them up in every call. That takes 6 us more, even in a compiled graph that already contains them.
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
    """Return a decorator that registers a function as the operator `tercet::name` for CPUs.

    The function must not return any of its input tensors. The operator has no gradients, and rejects tensors that
    require them; see `differentiable`.

    Args:
        name: Name of the operator.
        fake: Function with the same arguments whose results have the same shapes and strides and any values.
        mutates: Names of the arguments that the function changes.
    """

    def register(body: Callable[P, R]) -> Callable[P, R]:
        @wraps(body)
        def checked_call(*args: P.args, **kwargs: P.kwargs) -> R:
            if cast(Any, forward_ad)._current_level >= 0:
                raise NotImplementedError(f"tercet::{name} has no derivative in forward mode")
            if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
                raise NotImplementedError(f"tercet::{name} has no gradient; call it in torch.no_grad()")
            return body(*args, **kwargs)

        @wraps(fake)
        def fake_on_one_device(*args: P.args, **kwargs: P.kwargs) -> R:
            devices = {x.device.type for x in args if isinstance(x, Tensor)}
            if len(devices) > 1:  # otherwise an uninitialized result could be returned
                raise ValueError(f"tercet::{name} requires tensors of one device; got {', '.join(sorted(devices))}")
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
    """Add first-order gradients to an operator. Second derivatives are rejected.

    Args:
        operator: Operator without gradients.
        setup_context: Function (ctx, inputs, output) that saves what the backward pass needs.
        backward: Function (ctx, gradient of each result) that returns the gradient of each input, None if it has none.
    """

    call = cast(Any, operator)

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = call(*inputs)
        setup_context(ctx, inputs, output)  # not as a method, whose signature PyTorch would inspect at each call: 30 us
        return output

    def backward_once(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if (
            torch.compiler.is_compiling() or not torch.is_grad_enabled()
        ):  # compiled functions reject second derivatives themselves
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
    """Return the gradients, connected to `sources` so that differentiating them again raises an error.

    Without this, autograd would return incomplete second derivatives.
    """
    return tuple(None if x is None else cast(Any, _OnceDifferentiable).apply(name, x, *sources) for x in gradients)


class _OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, gradient: Tensor, *_: Tensor | None) -> Tensor:
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError(
            f"{ctx.name} has no second derivative (it is once_differentiable); set TERCET_KERNEL=off in the "
            "environment to compute it with PyTorch"
        )

"""AdamW whose step on a CPU is one kernel call for all parameters, with fused gradient clipping.

Loshchilov and Hutter, "Decoupled weight decay regularization" (2019). On other devices, and for models with few
weights, PyTorch's implementation is used. The optimizer state has the same form as PyTorch's.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from tercet.kernel import adam_, gradient_norm, supports_gradients
from tercet.training.optim.exact_norm import exact_norm
from tercet.training.optim.local_parts import is_sharded, local_parts

Settings = tuple[float, float, float, float, float]  # learning rate, both betas, eps and weight decay
UNSUPPORTED_OPTIONS = (
    "amsgrad",
    "maximize",
    "capturable",
    "differentiable",
)  # options that the kernel does not support


class FusedAdamW(torch.optim.AdamW):
    """PyTorch's AdamW, with Tercet's kernel if it supports the parameters and gradients.

    PyTorch's implementation is used with `amsgrad`, `maximize`, `capturable` or `differentiable`, and for gradients
    that a GradScaler has scaled.
    """

    scale = 1.0  # factor by which the next step multiplies the gradients
    exact = False  # if True, use the kernel for any size: its steps, unlike PyTorch's, are the same for shards

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = evaluate_closure(closure)
        scale, self.scale = self.scale, 1.0
        parameters = self.updated_parameters()
        if not self.uses_kernel(parameters):
            if scale != 1.0:
                for p in parameters:
                    cast(Tensor, p.grad).mul_(scale)
            if any(map(is_sharded, parameters)):  # PyTorch does not accept sharded and whole parameters in one call
                for group in self.param_groups:
                    step_local_parts(self, [p for p in group["params"] if p.grad is not None], group)
            else:
                super().step()
            return loss
        kernel_step(self, parameters, [row for group in self.param_groups for row in settings(group)], scale=scale)
        return loss

    def uses_kernel(self, parameters: list[Tensor]) -> bool:
        """Return whether Tercet's kernel computes the step of these parameters."""
        is_plain = not any(group[option] for group in self.param_groups for option in UNSUPPORTED_OPTIONS)
        # A scaler sets these for optimizers that unscale gradients in their step, as PyTorch's fused kernel does.
        is_scaled = getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None
        return is_plain and not is_scaled and supports_local_parts(parameters, exact=self.exact)

    def updated_parameters(self) -> list[Tensor]:
        """Return the parameters with gradients, which the next step updates."""
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]


def supports_local_parts(parameters: Iterable[Tensor], *, exact: bool) -> bool:
    """Return whether the kernel supports this rank's parts of the parameters that have gradients.

    Args:
        parameters: Whole or sharded parameters.
        exact: If True, allow any number of elements. If False, there is a minimum below which the kernel is not worth
            compiling.
    """
    parts = [(p, p.grad) for p in parameters if p.grad is not None]
    gradients = local_parts(g for _, g in parts)
    return supports_gradients(local_parts(p for p, _ in parts), gradients, min_elements=0 if exact else None)


def evaluate_closure(closure: Callable[[], Any] | None) -> Any:
    """Call the closure of an optimizer step with gradients enabled, and return its result; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def moments(optimizer: Optimizer, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return the first moments, second moments and step counts of the parameters, as PyTorch stores them.

    Each list has one tensor per parameter. Missing state is initialized with zeros.
    """
    states = [optimizer.state[p] for p in parameters]
    for p, state in zip(parameters, states, strict=True):
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
    return [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], [s["step"] for s in states]


def kernel_step(optimizer: Optimizer, parameters: list[Tensor], rows: list[Settings], *, scale: float = 1.0) -> None:
    """Update this rank's parts of the parameters with Tercet's kernel.

    Args:
        optimizer: Optimizer that has the moments of the parameters.
        parameters: Parameters with gradients.
        rows: Settings of each parameter (see `settings`).
        scale: Factor by which the gradients are multiplied.
    """
    gradients = local_parts(cast(Tensor, p.grad) for p in parameters)
    states = map(local_parts, moments(optimizer, parameters))
    adam_(local_parts(parameters), gradients, *states, settings=rows, scale=scale)


def step_local_parts(optimizer: Optimizer, parameters: list[Tensor], group: dict[str, Any]) -> None:
    """Update this rank's parts of the parameters with PyTorch's fused AdamW and the settings of `group`."""
    means, squares, steps = map(local_parts, moments(optimizer, parameters))
    adamw(
        local_parts(parameters),
        local_parts(cast(Tensor, p.grad) for p in parameters),
        means,
        squares,
        [],
        steps,
        fused=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def settings(group: dict[str, Any]) -> list[Settings]:
    """Return the settings of a group for the kernel, once for each of its parameters that has a gradient."""
    row = (float(group["lr"]), *group["betas"], group["eps"], group["weight_decay"])
    return [row] * sum(p.grad is not None for p in group["params"])


def clip_gradients(parameters: Iterable[Tensor], optimizer: Optimizer, limit: float) -> Tensor:
    """Clip the norm of all gradients together to at most `limit`.

    The gradients are scaled in place or, with Tercet's kernel, when the next step of the optimizer reads them. If
    `optimizer.exact` is True, the result is bitwise identical for sharded and whole gradients.

    Pascanu et al., "On the difficulty of training recurrent neural networks" (2013), algorithm 1.

    Args:
        parameters: Parameters of the model; those without a gradient are ignored.
        optimizer: Optimizer of the parameters.
        limit: Maximum norm; infinity to compute the norm only.

    Returns:
        Gradient norm before clipping, shape ().
    """
    parameters = list(parameters)
    kernel = optimizer if isinstance(optimizer, FusedAdamW) else None
    if kernel is not None and not kernel.uses_kernel(kernel.updated_parameters()):
        kernel = None
    gradients = [p.grad for p in parameters if p.grad is not None]
    if getattr(optimizer, "exact", False):
        norm = exact_norm(gradients)
    elif kernel is not None and not any(map(is_sharded, gradients)):
        norm = gradient_norm(gradients)
    else:
        return _clip_by_pytorch(parameters, limit)
    scale = min(1.0, limit / (float(norm) + 1e-6))
    if kernel is not None:
        kernel.scale = scale
    elif scale < 1.0:
        for gradient in local_parts(gradients):
            gradient.mul_(scale)
    return norm


def _clip_by_pytorch(parameters: list[Tensor], limit: float) -> Tensor:
    """Clip whole and sharded gradients, which PyTorch does not accept in one call.

    Returns:
        Norm of all gradients before clipping, shape ().
    """
    kinds = [[p for p in parameters if is_sharded(p) is sharded] for sharded in (False, True)]
    norms = [torch.nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds if kind]
    norms = [cast(Any, norm).full_tensor() if is_sharded(norm) else norm for norm in norms]
    norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
    for kind in kinds:
        torch.nn.utils.clip_grads_with_norm_(kind, limit, norm)
    return norm

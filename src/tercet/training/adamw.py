"""AdamW whose step, on a CPU, is one call for all parameters, and clips gradients as it reads them.

Loshchilov and Hutter, "Decoupled weight decay regularization" (2019). Elsewhere, and for a few numbers, PyTorch's own
fused kernel; what it keeps, and its checkpoints, are the same.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from tercet.kernel import adam_, norm, takes_gradients


class FusedAdamW(torch.optim.AdamW):
    scale = 1.0  # what the next step multiplies gradients by

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale, self.scale = self.scale, 1.0
        parameters = self.moved()
        if not takes_gradients(parameters):
            super().step()
            return loss
        for p in parameters:
            if not self.state[p]:
                start = {"step": torch.zeros((), dtype=torch.float32), "exp_avg": torch.zeros_like(p)}
                self.state[p].update(start, exp_avg_sq=torch.zeros_like(p))
        states = [self.state[p] for p in parameters]
        adam_(
            parameters,
            [cast(Tensor, p.grad) for p in parameters],
            *([state[kind] for state in states] for kind in ("exp_avg", "exp_avg_sq", "step")),
            how=[how for group in self.param_groups for how in _how(group)],
            scale=scale,
        )
        return loss

    def moved(self) -> list[Tensor]:
        """The parameters that the next step moves: those that have gradients."""
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]


def _how(group: dict[str, Any]) -> list[tuple[float, float, float, float, float]]:
    one = (float(group["lr"]), *group["betas"], group["eps"], group["weight_decay"])
    return [one] * sum(p.grad is not None for p in group["params"])


def clip_gradients(parameters: Iterable[Tensor], optimizer: Optimizer, limit: float) -> Tensor:
    """Scale all gradients, those of this optimizer, to a norm of at most `limit`, in place or in its next step.

    Pascanu et al., "On the difficulty of training recurrent neural networks" (2013), algorithm 1.

    Returns:
        (): their norm before.
    """
    if not isinstance(optimizer, FusedAdamW) or not takes_gradients(optimizer.moved()):
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
    found = norm([p.grad for p in parameters if p.grad is not None])
    optimizer.scale = min(1.0, limit / (float(found) + 1e-6))
    return found

"""Muon: orthogonalized momentum for hidden matrices, and AdamW for the other weights.

    M <- m M + (1 - m) G                                         m: momentum, G: gradient
    U  = orthogonalize(m M + (1 - m) G)                          Nesterov momentum
    W <- W - lr (sqrt(max(1, rows / columns)) U + decay W)

Jordan et al. (2024), "Muon: an optimizer for hidden layers", including the quintic Newton-Schulz iteration.
There are three differences from `torch.optim.Muon`. Matrices of one shape are orthogonalized as one batch. On devices
other than CUDA this is done in float32, because casting to bfloat16, as `torch.optim.Muon` always does, takes seconds
per step on machines without fast bfloat16. In float32, the iteration for long matrices uses only their Gram matrices.

One optimizer contains both algorithms, so that checkpoints, schedules and sharding only need to support a single
optimizer with ordinary parameter groups.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import reduce
from itertools import islice
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from tercet.training.optim.adamw import (
    evaluate_closure,
    is_sharded,
    kernel_step,
    settings,
    step_local_parts,
    supports_local_parts,
)

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # chosen for a large slope at zero, so that small singular values grow fast
BATCHED_DEVICES: tuple[str, ...] = (
    "cuda",
)  # devices on which one call for all matrices of a shape is faster than a call for each
# Maximum iterations on one Gram matrix: rounding errors in its zero eigenvalues grow twelvefold per iteration.
MAX_GRAM_ITERATIONS = 5

_foreach: Any = torch  # the _foreach functions have no type annotations


class MuonAdamW(Optimizer):
    """Muon for matrices, AdamW for all other parameters.

    Args:
        groups: Parameter groups. A group with `muon=True` contains matrices and uses `lr`, `momentum`, `weight_decay`
            and `iterations`, the number of iterations of `orthogonalize`. The others use `lr`, `betas`, `eps` and
            `weight_decay`.

    Raises:
        ValueError: If a group with `muon=True` contains a parameter that is not a matrix.
    """

    exact = False  # as in `FusedAdamW`

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        defaults = {
            "lr": 1e-3, "weight_decay": 0.0, "muon": False,
            "momentum": 0.9, "iterations": 5,
            "betas": (0.9, 0.95), "eps": 1e-8,
        }  # fmt: skip
        super().__init__(list(groups), defaults)
        for group in self.param_groups:
            if group["muon"] and any(p.ndim != 2 for p in group["params"]):
                raise ValueError("Muon requires matrices; put other parameters into a group with muon=False")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            (self._muon if group["muon"] else self._adamw)(parameters, group)
        return loss

    def _muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        parameters_by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for p in parameters:
            parameters_by_shape[p.shape].append(p)
        for shape, matrices in parameters_by_shape.items():
            batches = [matrices] if matrices[0].device.type in BATCHED_DEVICES else [[p] for p in matrices]
            updates = [update for batch in batches for update in self._advance(batch, group["momentum"])]
            rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
            steps = iter(_orthogonalize_updates(updates, group["iterations"], matrices[0].dtype, rate))
            for batch in batches:
                _foreach._foreach_mul_(batch, 1 - group["lr"] * group["weight_decay"])
                _foreach._foreach_sub_(batch, list(islice(steps, len(batch))))

    def _advance(self, parameters: list[Tensor], momentum: float) -> list[Tensor]:
        """Update the momenta of the parameters, and return the Nesterov momenta, which are to be orthogonalized."""
        gradients = [cast(Tensor, p.grad) for p in parameters]
        for p, gradient in zip(parameters, gradients, strict=True):
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(gradient)
        momenta = [self.state[p]["momentum"] for p in parameters]
        # Separate operations, each of which rounds once, so that the result for a shard equals that for the matrix.
        new = _foreach._foreach_mul(gradients, 1 - momentum)
        _foreach._foreach_mul_(momenta, momentum)
        _foreach._foreach_add_(momenta, new)
        lookahead = _foreach._foreach_mul(momenta, momentum)
        _foreach._foreach_add_(lookahead, new)
        return list(lookahead)

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        if not parameters:
            return
        if supports_local_parts(parameters, exact=self.exact):
            kernel_step(self, parameters, settings(group))
        else:
            step_local_parts(self, parameters, group)


def orthogonalize(matrices: Float[Tensor, "N R C"], iterations: int = 5) -> Float[Tensor, "N R C"]:
    """Move the singular values of each matrix towards 1 (within about 0.3), keeping its singular vectors.

    Each iteration computes X <- a X + (b X Xᵀ + c (X Xᵀ)²) X. The first X is the matrix divided by its Frobenius norm,
    transposed if it has more rows than columns. Very small singular values need more iterations than others.

    Args:
        matrices: N matrices.
        iterations: Number of iterations.

    Returns:
        Orthogonalized matrices, in bfloat16 on CUDA and in float32 on other devices.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    rows, columns = x.shape[-2:]
    # With more than 1.5 times as many columns as rows, iterating on the Gram matrix takes less work, for any number of
    # iterations. In bfloat16 this would lose small singular values, which are squared in the Gram matrix, so autocast
    # is disabled.
    use_gram = 2 * columns > 3 * rows and x.dtype == torch.float32
    with torch.autocast(x.device.type, enabled=False):
        x = (_newton_schulz_by_gram if use_gram else _newton_schulz)(x, iterations)
    return x.mT if tall else x


def _newton_schulz(x: Float[Tensor, "N R C"], iterations: int) -> Float[Tensor, "N R C"]:
    a, b, c = COEFFICIENTS
    for _ in range(iterations):
        gram = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _newton_schulz_by_gram(x: Float[Tensor, "N R C"], iterations: int) -> Float[Tensor, "N R C"]:
    """Return the result of `_newton_schulz`, except for rounding, by iterating on the Gram matrix X Xᵀ.

    With G = X Xᵀ and S = aI + bG + cG², an iteration maps X to S X, and therefore G to S G S. The matrices S of several
    iterations are multiplied with each other, and their product with X.
    """
    a, b, c = COEFFICIENTS
    for start in range(0, iterations, MAX_GRAM_ITERATIONS):
        gram, steps = x @ x.mT, list[Tensor]()  # (N, R, R)
        for remaining in reversed(range(min(MAX_GRAM_ITERATIONS, iterations - start))):
            step = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            if remaining:  # G <- S G S; aI is not added to S here, because that would round the small entries of S
                half = torch.baddbmm(gram, step, gram, beta=a)
                gram = torch.baddbmm(half, half, step, beta=a)
            step.diagonal(dim1=-2, dim2=-1).add_(a)
            steps.append(step)
        x = reduce(torch.bmm, steps) @ x  # in any order, since polynomials of one matrix commute
    return x


def _orthogonalize_updates(updates: list[Tensor], iterations: int, dtype: torch.dtype, rate: float) -> list[Tensor]:
    """Return the orthogonalized updates of matrices of one shape, multiplied by `rate`, in `dtype`."""

    def work(matrices: list[Tensor]) -> list[Tensor]:
        result = orthogonalize(torch.stack(matrices), iterations).to(dtype).mul_(rate)
        # PyTorch processes several tensors in one call only if all have the same layout.
        return list(result.contiguous() if result.device.type in BATCHED_DEVICES else result)

    if not is_sharded(updates[0]):
        return work(updates)

    from torch.distributed.tensor import DTensor, distribute_tensor

    # A sharded matrix is gathered, orthogonalized as a whole and split again, since a shard has other singular vectors.
    # All ranks do the same work, so that no result has to be sent.
    dtensors = [cast(DTensor, u) for u in updates]
    full_updates = work([u.full_tensor() for u in dtensors])
    return [
        distribute_tensor(new, old.device_mesh, old.placements, src_data_rank=None)
        for new, old in zip(full_updates, dtensors, strict=True)
    ]

"""An objective of another package: the sum of its losses over all targets that count.

    total = sum_i loss(z_i, target_i)      plain = sum_i -ln p(target_i), for validation

The logits z of all targets over a vocabulary are the largest tensor of a step. They are therefore computed for some
rows at a time, and computed again in the backward pass (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
2016). This requires that the loss of a target depends only on its own row.
"""

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tercet.config import UserError
from tercet.messages import describe_error
from tercet.models.vocabulary import Unembedding
from tercet.objectives.likelihood import choose_form, negative_log_likelihood, rows_per_chunk
from tercet.objectives.loss import IGNORE_INDEX, Loss
from tercet.objectives.specs import CustomObjective
from tercet.spec import ProblemType

TRIAL_ROWS = 4


def likelihood_or_objective(
    hidden: Float[Tensor, "*B D"],
    unembedding: Unembedding,
    targets: Int[Tensor, "*B"],
    *,
    smoothing: float,
    objective: CustomObjective | None,
) -> Loss:
    """Return the loss of `targets` by an objective, or by default their negative log-likelihood.

    Args:
        hidden: Hidden state from which each target is predicted.
        unembedding: Layer that computes the logits.
        targets: Target ids. Targets with IGNORE_INDEX do not count.
        smoothing: Label smoothing of the negative log-likelihood.
        objective: Objective of another package.
    """
    if objective is None:
        return negative_log_likelihood(hidden, unembedding, targets, smoothing=smoothing)
    flat, labels = hidden.flatten(0, -2), targets.flatten()
    form = choose_form(len(flat), unembedding.vocab_size, torch.float32, flat.device.type)
    total, plain = (_sum_rows if form == "whole" else _sum_chunks)(flat, labels, unembedding, objective)
    return Loss(total, plain, (targets != IGNORE_INDEX).sum())


def sum_losses(objective: CustomObjective, logits: Tensor, targets: Tensor) -> Float[Tensor, ""]:
    """Return the sum of the losses of all targets that count, in float32.

    Args:
        objective: Objective of another package.
        logits: Logits or predictions, as in `CustomObjective.loss`.
        targets: Targets, of which class indices may be IGNORE_INDEX.

    Raises:
        TypeError: If the objective is a class.
        UserError: If the objective does not return one loss per target.
    """
    if isinstance(objective, type):
        raise TypeError(f"objective is the class {objective.__name__}; pass an object, such as {objective.__name__}()")
    ignored = None if targets.is_floating_point() else targets == IGNORE_INDEX
    with torch.autocast(logits.device.type, enabled=False):
        losses: Any = objective.loss(logits, targets if ignored is None else targets.masked_fill(ignored, 0))
    if not isinstance(losses, Tensor) or losses.shape != targets.shape[:1]:
        returned = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise UserError(
            f"{objective.kind}: loss returned {returned}, expected one loss per target, shape ({len(targets)},); "
            "leave out sums and means over the targets"
        )
    return (losses if ignored is None else losses.masked_fill(ignored, 0.0)).float().sum()


def check_objective(
    objective: CustomObjective, *, n_classes: int, problem_type: ProblemType = "single_label_classification"
) -> None:
    """Check that an objective returns finite losses with a gradient, on a few random logits.

    Args:
        objective: Objective of another package.
        n_classes: Number of tokens or labels, V.
        problem_type: Kind of the targets.

    Raises:
        UserError: If it raises, or does not return one finite loss per target, or there is no gradient.
    """
    logits, targets = trial_batch(n_classes, problem_type)
    logits.requires_grad_()
    try:
        total = sum_losses(objective, logits * 1.0, targets)
        gradient = torch.autograd.grad(total, logits)[0] if total.requires_grad else None
    except UserError:
        raise
    except Exception as error:  # the code is the user's, and may raise anything
        raise UserError(f"{objective.kind}: {describe_error(error)}") from None
    if gradient is None or not (total.isfinite() and gradient.isfinite().all()):
        missing = "no gradient" if gradient is None else "a loss or gradient that is not finite"
        raise UserError(f"{objective.kind}: loss has {missing} for random logits; correct its formula")


def trial_batch(
    n_classes: int, problem_type: ProblemType = "single_label_classification", *, rows: int = TRIAL_ROWS
) -> tuple[Tensor, Tensor]:
    """Return random logits and targets in the form of `CustomObjective.loss`, the same for each call."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(rows, n_classes, generator=generator)
    match problem_type:
        case "single_label_classification":
            return logits, torch.randint(n_classes, (rows,), generator=generator)
        case "multi_label_classification":
            return logits, (torch.rand(rows, n_classes, generator=generator) < 0.5).float()
        case "regression":
            return logits[:, 0].clone(), torch.randn(rows, generator=generator)


def _sum_rows(
    hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], unembedding: Unembedding, objective: CustomObjective
) -> tuple[Tensor, Tensor]:
    """Return the sums of the objective and of -ln p, which has no gradient."""
    logits = unembedding(hidden)
    plain = F.cross_entropy(logits.detach(), targets, ignore_index=IGNORE_INDEX, reduction="sum")
    return sum_losses(objective, logits, targets), plain


def _sum_chunks(
    hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"], unembedding: Unembedding, objective: CustomObjective
) -> tuple[Tensor, Tensor]:
    """Return the same sums as `_sum_rows` with the logits of some rows at a time."""
    n_rows = rows_per_chunk(unembedding.vocab_size, torch.float32, hidden.device.type)
    if len(hidden) <= n_rows:
        return _sum_rows(hidden, targets, unembedding, objective)
    run = partial(checkpoint, _sum_rows, use_reentrant=False) if torch.is_grad_enabled() else _sum_rows
    total = plain = torch.zeros((), device=hidden.device)
    for start in range(0, len(hidden), n_rows):
        rows = slice(start, start + n_rows)
        part = cast("tuple[Tensor, Tensor]", run(hidden[rows], targets[rows], unembedding, objective))
        total, plain = total + part[0], plain + part[1]
    return total, plain

"""Checks of a custom objective: conditions under which its sums do not depend on padding, batches and devices."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from tercet.config import UserError, parse
from tercet.diagnosis.part_checks import Fault, PartCheck, PartChecks, choose_remedy, run_check
from tercet.messages import describe_error
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.objectives import IGNORE_INDEX, CausalBatch, CustomObjective, causal_loss
from tercet.objectives.custom import check_objective, sum_losses, trial_batch
from tercet.spec import ProblemType

ROWS, CLASSES = 11, 7
STACK = {"d_model": 24, "n_layers": 1, "n_heads": 2, "position": "rotary"}


@dataclass(frozen=True, kw_only=True)
class _Case:
    """Objective to check, with random logits and targets of one kind.

    Attributes:
        objective: Objective.
        logits: (N, V) Logits, or (N,) predictions.
        targets: Targets in the form of `CustomObjective.loss`.
        problem_type: Kind of the targets.
    """

    objective: CustomObjective
    logits: Tensor
    targets: Tensor
    problem_type: ProblemType


def check_objective_part(part: type[CustomObjective]) -> PartChecks:
    """Check an objective with its default settings, on random logits, for each kind of targets that it supports.

    Raises:
        UserError: If it has a setting without a default, or supports no kind of targets.
    """
    try:
        objective = part()
    except (TypeError, ValueError) as error:
        raise UserError(f"{part.kind}: {describe_error(error)}") from None
    cases, refusal = list[_Case](), None
    for problem_type in get_args(ProblemType):
        try:
            check_objective(objective, n_classes=CLASSES, problem_type=problem_type)
        except UserError as error:
            refusal = refusal or error
            continue
        logits, targets = trial_batch(CLASSES, problem_type, rows=ROWS)
        cases.append(_Case(objective=objective, logits=logits, targets=targets, problem_type=problem_type))
    if not cases:
        raise refusal or UserError(f"{part.kind} supports no kind of targets")
    checks = list[PartCheck]()
    for name, (check, remedy) in CHECKS.items():
        words = choose_remedy(remedy, CAUSES.get(name, ()), checks)
        checks.append(run_check(name, lambda check=check: all(check(case) is not False for case in cases), words))
    return PartChecks(
        part=part.kind, parameters=0, checks=tuple(checks), targets=tuple(case.problem_type for case in cases)
    )


def _losses(case: _Case, rows: slice = slice(None)) -> Tensor:
    """Return the losses of some rows, (n,), from the same random numbers in each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return case.objective.loss(case.logits[rows].clone(), case.targets[rows])


def _repeats(case: _Case) -> None:
    calls = [case.objective.loss(case.logits.clone(), case.targets) for _ in range(2)]
    if not torch.equal(*calls):
        is_random = torch.equal(_losses(case), _losses(case))
        raise Fault("a call draws random numbers" if is_random else "a call depends on earlier ones")


def _separates_rows(case: _Case) -> bool:
    whole, single = _losses(case), [_losses(case, slice(row, row + 1)) for row in range(ROWS)]
    halves = [_losses(case, slice(0, 4)), _losses(case, slice(4, None))]
    return _close(torch.cat(single), whole) and _close(torch.cat(halves), whole)


def _keeps_logits(case: _Case) -> bool:
    logits, targets = case.logits.clone(), case.targets.clone()
    case.objective.loss(logits, targets)
    return torch.equal(logits, case.logits) and torch.equal(targets, case.targets)


def _ignores_targets(case: _Case) -> bool:
    """Return whether targets that do not count change neither the sum nor the gradients of other rows."""
    if case.targets.is_floating_point():
        return True
    is_ignored = torch.arange(ROWS) % 3 == 1
    logits = case.logits.clone().requires_grad_()
    total = sum_losses(case.objective, logits * 1.0, case.targets.masked_fill(is_ignored, IGNORE_INDEX))
    (gradient,) = torch.autograd.grad(total, logits)
    kept = case.logits[~is_ignored].requires_grad_()
    expected = sum_losses(case.objective, kept * 1.0, case.targets[~is_ignored])
    (expected_gradient,) = torch.autograd.grad(expected, kept)
    return (
        _close(total, expected) and _close(gradient[~is_ignored], expected_gradient) and not gradient[is_ignored].any()
    )


def _divides_batches(case: _Case) -> bool:
    """Return whether a padded batch of a model has the sums and gradients of its rows, each in its own batch."""
    if case.targets.is_floating_point():
        return True
    stack = parse(StackSpec, STACK)
    model = DecoderOnly(DecoderOnlySpec(vocab_size=CLASSES, max_len=9, stack=stack), seed=1).eval()
    tokens = torch.randint(CLASSES, (2, 10), generator=torch.Generator().manual_seed(2))
    lengths = (9, 4)
    targets = tokens[:, 1:].clone()
    targets[1, lengths[1] :] = IGNORE_INDEX
    whole = CausalBatch(tokens[:, :-1], targets)
    parts = [CausalBatch(tokens[i : i + 1, :n], targets[i : i + 1, :n]) for i, n in enumerate(lengths)]
    totals, gradients = list[Tensor](), list[Tensor]()
    for batches in ([whole], parts):
        model.zero_grad()
        losses = [causal_loss(model, batch, objective=case.objective) for batch in batches]
        total = sum((loss.total for loss in losses), torch.zeros(()))
        total.backward()
        totals.append(total.detach())
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
    return _close(*totals) and _close(*gradients)


def _is_finite(case: _Case) -> bool:
    for scale in (0.0, 100.0):
        logits = (case.logits.sign() * scale).requires_grad_()
        losses = case.objective.loss(logits * 1.0, case.targets)
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        if not (losses.isfinite().all() and gradient.isfinite().all()):
            return False
    return True


def _prefers_correct(case: _Case) -> bool:
    """Return whether the mean loss of correct predictions is smaller than that of wrong ones."""
    targets = case.targets
    match case.problem_type:
        case "single_label_classification":
            correct = 4 * torch.nn.functional.one_hot(targets, CLASSES).float()
            wrong = correct.roll(1, 1)
        case "multi_label_classification":
            correct, wrong = 4 * targets - 2, 2 - 4 * targets
        case "regression":
            correct, wrong = targets.clone(), targets + 2.0
    return bool(case.objective.loss(correct, targets).mean() < case.objective.loss(wrong, targets).mean())


def _compiles(case: _Case) -> bool:
    torch.compiler.reset()  # else the classes of objectives that were checked before count as recompilations
    compiled = torch.compile(partial(sum_losses, case.objective), backend="eager")
    return _close(compiled(case.logits.clone(), case.targets), sum_losses(case.objective, case.logits, case.targets))


def _runs_on_device(case: _Case) -> bool:
    """Return whether all tensors are on the device of the logits; the device `meta` has shapes, but no values."""
    losses = case.objective.loss(case.logits.to("meta"), case.targets.to("meta"))
    return losses.device.type == "meta"


def _close(x: Tensor, y: Tensor) -> bool:
    return torch.allclose(x, y, atol=1e-5, rtol=1e-4) and bool(x.isfinite().all())


OWN_ROW = "compute the loss of a target only from its own row, without sums, means or counts over the targets"
REPEATS, OWN_ROWS = "two calls are equal", "the loss of a target depends only on its row"
IGNORED, PADDING = "ignored targets do not count", "padding and the division of a batch change nothing"
COMPILED = "torch.compile gives the same loss"
CAUSES = {OWN_ROWS: (REPEATS,), IGNORED: (REPEATS, OWN_ROWS), PADDING: (REPEATS, OWN_ROWS), COMPILED: (REPEATS,)}
CHECKS: dict[str, tuple[Callable[[_Case], bool | None], str]] = {  # by condition: the check and the remedy
    REPEATS: (_repeats, "keep nothing between calls, and draw no random numbers"),
    OWN_ROWS: (_separates_rows, OWN_ROW),
    "logits and targets are not changed": (_keeps_logits, "use operations that return a new tensor, such as x.add(1)"),
    IGNORED: (_ignores_targets, OWN_ROW),
    PADDING: (_divides_batches, OWN_ROW),
    "losses and gradients are finite for logits of 0 and 100": (
        _is_finite, "use log_softmax or logsigmoid instead of the logarithm of a probability, and powers of at least 1"
    ),
    "a correct prediction has a smaller loss": (_prefers_correct, "check the sign, and which targets are correct"),
    COMPILED: (_compiles, "read no values of tensors, as by x.item()"),
    "tensors are on the device of the logits": (
        _runs_on_device, "create tensors with device=logits.device, and read no values, as by x.item() or x[mask]"
    ),
}  # fmt: skip

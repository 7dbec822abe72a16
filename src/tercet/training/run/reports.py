"""Reports on stderr about the start of a run, and the errors of an exact resume."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint.run_record import Change
from tercet.config import UserError
from tercet.messages import print_note, show
from tercet.models import AnySpec, stack_specs
from tercet.training.run_folder.changes import describe_length, equals_planned_run
from tercet.training.run_folder.checkpoints import Checkpoints
from tercet.training.run_folder.folder import StartPoint

if TYPE_CHECKING:
    from tercet.training.tasks.task import Task


def report_start(start: StartPoint, checkpoints: Checkpoints, steps: int, quiet: bool) -> None:
    """Report the first step of a resumed run, damaged checkpoints, and a start from weights only.

    The last two are reported even if `quiet`.

    Args:
        start: Start point.
        checkpoints: Checkpoints of the run, with the errors of damaged ones.
        steps: Length of the run in steps.
        quiet: If True, do not report the first step.
    """
    if start.checkpoint is not None:
        resumption = f"resuming from the checkpoint of step {start.step}"
    else:
        resumption = "starting again at step 1" if start.weights is None else f"using the weights of step {start.step}"
    for damage in checkpoints.damaged.values():
        log(f"{damage}; {resumption}", quiet=False)
    if start.step and start.step < steps:
        log(f"resuming at step {start.step + 1:,} of {steps:,}", quiet)
    if start.weights is not None:
        log(
            f"only the weights in {start.weights.folder} could be recovered: the optimizer state starts again, so the "
            "run does not end as an uninterrupted run would",
            quiet=False,
        )


def report_changes(changes: Sequence[Change], quiet: bool) -> None:
    if changes:
        log(
            f"changed: {', '.join(f'{change.key} {show(change.old)} -> {show(change.new)}' for change in changes)}",
            quiet,
        )


def explain_length(out: Path, task: "Task", changes: Sequence[Change], *, exact: bool) -> str | None:
    """Describe the effect of a changed length on the remaining steps, or return None if it did not change.

    Raises:
        UserError: If an exact resume is requested, and a run planned with the new length would have taken other steps
            so far.
    """
    at = next((change.step for change in changes if change.steps is not None), None)
    if at is None:
        return None
    words = describe_length(task.recipe.training, task.plan, at)
    if exact and not equals_planned_run(task.recipe.training, task.plan, at):
        raise UserError(f"cannot change the length of {out} exactly: {words}; omit --exact")
    return words


def report_arithmetic(out: Path, start: StartPoint, current: Mapping[str, str], *, exact: bool) -> None:
    """Report on stderr the differences between the numerical environment and that of the steps so far.

    The environment consists of libraries, device, threads and precision, among others; see `arithmetic.py`.

    Args:
        out: Run folder.
        start: Start point.
        current: Environment of the remaining steps.
        exact: If True, reject a difference.

    Raises:
        UserError: If an exact resume is requested and the environment has changed.
    """
    from tercet.training.run_folder.arithmetic import find_changes

    changes = find_changes(() if start.checkpoint is None else start.checkpoint.arithmetic, current)
    if changes and exact:
        raise UserError(f"cannot resume {out} exactly: {'; '.join(changes)}; undo the change, or omit --exact")
    if changes:
        log(f"arithmetic: {'; '.join(changes)}: up to rounding, the run ends as an uninterrupted run would, but not "
            "bit for bit (--exact rejects this)", quiet=False)  # fmt: skip


def describe_sizes(spec: AnySpec, pretrained: AnySpec, row_len: int) -> str:
    """Describe layers, width and context of a model that starts from a pretrained one, and the length of its rows.

    The context of the pretrained model is added if it differs.

    Args:
        spec: Model that is trained.
        pretrained: Pretrained model that it starts from.
        row_len: Maximum tokens of a training row.
    """
    sizes = " and ".join(f"{stack.n_layers} layers of {stack.d_model}" for stack in stack_specs(spec))
    shorter = "" if spec.max_len == pretrained.max_len else f" (of {pretrained.max_len:,})"
    rows = "" if row_len == spec.max_len else f", rows of at most {row_len:,}"
    return f"{sizes}, a context of {spec.max_len:,} tokens{shorter}{rows}"


def log(text: str, quiet: bool) -> None:
    if not quiet:
        print_note(text)

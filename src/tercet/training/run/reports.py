"""What a run says on stderr of where it goes on, and with what; and what is refused where its end is to be exact."""

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


def report_start(out: Path, start: StartPoint, checkpoints: Checkpoints, steps: int, quiet: bool) -> None:
    """Where the run goes on, and, quiet or not, what of it was damaged."""
    for damage in checkpoints.damaged.values():
        resumption = f"goes on from the checkpoint of step {start.step}" if start.checkpoint else "begins anew"
        log(f"{damage}; the run {resumption}", quiet=False)
    if start.step and start.step < steps:
        log(f"goes on at step {start.step + 1:,} of {steps:,}", quiet)
    if start.weights is not None:
        log(
            f"only the weights of {start.weights.folder} are left: the optimizer begins anew, and the run does not "
            "end as it would have",
            quiet=False,
        )


def report_changes(changes: Sequence[Change], quiet: bool) -> None:
    if changes:
        log(
            f"changed: {', '.join(f'{change.key} {show(change.old)} -> {show(change.new)}' for change in changes)}",
            quiet,
        )


def explain_length(out: Path, task: "Task", changes: Sequence[Change], *, exact: bool) -> str | None:
    """What another length does to the steps from here on; None where it stays.

    Raises:
        UserError: where an exact end is asked for, and a run that was planned so would have taken other steps so far.
    """
    at = next((change.step for change in changes if change.steps is not None), None)
    if at is None:
        return None
    words = describe_length(task.recipe.training, task.plan, at)
    if exact and not equals_planned_run(task.recipe.training, task.plan, at):
        raise UserError(f"{out} cannot get another length exactly: {words}; leave --exact out")
    return words


def report_arithmetic(out: Path, start: StartPoint, current: Mapping[str, str], *, exact: bool) -> None:
    """Raises:
    UserError: where an exact end is asked for, and steps so far were worked out otherwise than those to come.
    """
    from tercet.training.run_folder.arithmetic import find_changes

    changes = find_changes(() if start.checkpoint is None else start.checkpoint.arithmetic, current)
    if changes and exact:
        raise UserError(f"{out} cannot go on exactly: {'; '.join(changes)}; undo that, or leave --exact out")
    if changes:
        log(f"arithmetic: {'; '.join(changes)}: the run ends as it would have but for rounding, not to the last bit "
            "(--exact refuses)", quiet=False)  # fmt: skip


def describe_sizes(spec: AnySpec, pretrained: AnySpec) -> str:
    """Of a model that goes on from another, whose sizes are its own."""
    sizes = " and ".join(f"{stack.n_layers} layers of {stack.d_model}" for stack in stack_specs(spec))
    shorter = "" if spec.max_len == pretrained.max_len else f" (of {pretrained.max_len:,})"
    return f"{sizes}, a context of {spec.max_len:,} tokens{shorter}"


def log(text: str, quiet: bool) -> None:
    if not quiet:
        print_note(text)

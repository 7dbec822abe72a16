"""What of a run may become another once it has begun: its length, how often it looks, saves and logs, its patience.

`recipe.yaml` stays what the run was begun with. A change is a line in `run.json`, a single file that is replaced whole:
whenever a process is killed, the run is the one before the change or the one after it. It holds from the step on at
which it was made, so that a step is a function of (seed, step, changes): a run that has to go back to an older
checkpoint takes the steps before a change as they were.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.checkpoint.run_record import RECIPE, RECORD, Change, RunRecord, read_record
from tercet.config import UserError, to_plain
from tercet.messages import show
from tercet.settings_yaml import read_yaml
from tercet.spec import Steps, check_range
from tercet.training.optim.schedules import rate_factor
from tercet.training.recipe.files import LENGTHS
from tercet.training.recipe.recipe import Recipe, parse_recipe
from tercet.training.recipe.specs import LoggingSpec, TrainingSpec
from tercet.training.recipe.task_specs import TranslationTaskSpec
from tercet.training.run_folder.choices import More, Until

if TYPE_CHECKING:
    from tercet.training.tasks.plan import Plan

# Of `training`, beside its length.
KEYS = ("validate_every", "save_every", "log_every", "keep", "patience", "activation_checkpointing")
# Of `training`: each start says them anew.
MACHINES = ("devices", "nodes", "strategy", "rank_timeout", "reshard_after_forward", "cpu_offload")
MAY_CHANGE = tuple(f"training.{key}" for key in (*LENGTHS[:2], *KEYS, *MACHINES))


def read_recipe(run: Path | str) -> Recipe:
    """The recipe of a run, with what was changed since it was begun.

    Raises:
        UserError: where the folder holds none, or it is damaged.
    """
    record = read_record(Path(run))
    return apply_changes(read_initial_recipe(Path(run), record), record, Path(run))


def read_initial_recipe(run: Path, record: RunRecord | None) -> Recipe:
    """The recipe that a run was begun with. Raises as `read_recipe` does."""
    path = run / RECIPE
    if record is not None:
        record.check_file(run, RECIPE)
    return parse_recipe(read_yaml(path), name=str(path), run=run)


def apply_changes(initial: Recipe, record: RunRecord | None, run: Path) -> Recipe:
    """The recipe that a run was begun with, as it has become.

    Raises:
        UserError: where the record names changes that there are not.
    """
    changes, allowed = () if record is None else record.changes, _values(initial)
    settings = to_plain(initial)
    for change in changes:
        if change.key not in allowed:
            raise UserError(f"{run / RECORD}: changes: there is no {show(change.key)} that may change; put it back")
        part, _, key = change.key.partition(".")
        settings[part][key] = change.new
    return parse_recipe(settings, name=f"{run / RECORD}: changes", run=run) if changes else initial


def merge_changes(requested: Recipe, initial: Recipe, current: Recipe) -> Recipe:
    """The recipe of a command, for a run that was begun with `initial` and has become `current`. Whoever repeats
    the command that began it goes on with it as it is; what is neither as it was begun nor as it is now is to be
    changed."""
    requested_values, initial_values, values = _values(requested), _values(initial), _values(current)
    lengths = [f"training.{key}" for key in LENGTHS]  # one choice: they stay or go together
    if any(requested_values[key] != initial_values[key] for key in lengths):
        values |= {key: requested_values[key] for key in lengths}
    machines = [f"training.{key}" for key in MACHINES]
    values |= {key: requested_values[key] for key in requested_values if key in machines}
    values |= {
        key: requested_values[key]
        for key in requested_values
        if key not in lengths and requested_values[key] != initial_values[key]
    }
    return _replace_values(requested, values)


def set_length(current: Recipe, recipe: Recipe, record: RunRecord | None, out: Path, length: More | Until) -> Recipe:
    """The recipe by which the run in `out` goes on, with another length. A run that is still on its way to an
    end that the same `More` has put there keeps it: the command was repeated.

    Raises:
        UserError: where there is no run, or its length is not known in steps.
    """
    flag = "--more" if isinstance(length, More) else "--until"
    steps: Any = length.steps  # from Python anything
    try:
        check_range(flag, steps, Steps)
    except ValueError as error:
        raise UserError(error) from None
    if not isinstance(steps, int):
        raise UserError(f"{flag}={show(steps)} must be a whole number")
    if record is None:
        raise UserError(f"{out} holds no run that has begun, so {flag} has nothing to make longer; set its max_steps")
    if _length(recipe) != _length(current):
        raise UserError(f"{flag} and another length in the recipe or in --set: leave one of them out")
    total = record.total_steps
    new_total = steps
    if isinstance(length, More):
        lengths = [record.steps, *(change.steps for change in record.changes if change.steps is not None)]
        previous_total = lengths[-2] if len(lengths) > 1 else None
        is_repeated = not record.finished and previous_total is not None and total == previous_total + steps
        new_total = total if is_repeated else total + steps
    if new_total == total:
        return recipe
    try:
        return _replace_values(
            recipe, {"training.max_steps": new_total, "training.max_epochs": None, "training.max_hours": None}
        )
    except ValueError as error:
        raise UserError(error) from None


def check_length(out: Path, old: Recipe, new: Recipe, record: RunRecord | None, steps: int | None) -> None:
    """Raises:
    UserError: where a run is to have a length, of `steps` where they are known, that it cannot be given any more.
    """
    if record is None or _length(old) == _length(new):
        return
    if new.training.max_hours is not None:
        raise UserError(f"{out} has begun: its hours have become steps; make it longer by --more or --until STEPS")
    if steps is not None and steps <= record.saved:
        raise UserError(
            f"{out} has taken {record.saved:,} steps, so that {steps:,} in all leave none; give a larger --until"
        )


def check_devices(out: Path, old: Recipe, new: Recipe) -> None:
    """Raises:
    UserError: where a run is to have another number of devices, and the order of its data follows from that.
    """
    if old.training.data_parallel_size == new.training.data_parallel_size:
        return
    if new.training.batch_ramp is not None:
        reason = "its batch grows by a micro-batch on each device (training.batch_ramp)"
    elif isinstance(new.task, TranslationTaskSpec) and not isinstance(new.task.micro_batch_tokens, int):
        reason = "its buckets are a device's share of a batch, for task.micro_batch_tokens is not set"
    else:
        return
    raise UserError(f"{out} was begun on {old.training.world_size} devices and stays there: {reason}")


def list_changes(old: Recipe, new: Recipe, *, step: int, steps: int) -> tuple[Change, ...]:
    """What is to be another in a run behind which are `step` steps; `steps` is its length from then on."""
    old_values, new_values = _values(old), _values(new)
    return tuple(
        Change(
            step=step, key=key, old=old_values[key], new=new_values[key],
            steps=steps if key.removeprefix("training.") in LENGTHS and new_values[key] is not None else None,
        )
        for key in old_values if old_values[key] != new_values[key]
    )  # fmt: skip


def describe_end(record: RunRecord, spec: TrainingSpec) -> str:
    """Where a run that is finished has ended, and why where that was early."""
    total = record.total_steps
    if record.saved >= total:
        return f"it has ended at step {record.saved:,}"
    return f"it stopped at step {record.saved:,} of {total:,}, {spec.patience} validations without a better one"


def can_resume(record: RunRecord, old: Recipe, new: Recipe) -> bool:
    """Whether a run that has ended goes on: it is made longer, or has stopped early and is given more patience."""
    old_patience, new_patience = old.training.patience, new.training.patience
    stopped_early = record.saved < record.total_steps
    has_more_patience = old_patience is not None and (new_patience is None or new_patience > old_patience)
    return _length(old) != _length(new) or (stopped_early and has_more_patience)


def plan_with_changes(plan: "Plan", record: RunRecord) -> "Plan":
    """A plan as what its run has become, step by step."""
    plan = replace(plan, steps=record.steps)
    for change in record.changes:
        if change.steps is not None:
            plan = plan.extended(change.steps, at=change.step)
    return plan


def equals_planned_run(spec: TrainingSpec, plan: "Plan", at: int) -> bool:
    """Whether a run that was made longer at step `at` ends as one that was to be so long from its beginning."""
    last_steps = {first - 1 for first, _ in plan.lengths if 0 < first < at} | ({at - 1} if at else set[int]())
    # A rate that falls has not begun to, where that of the last step under each length is the same under this one.
    same_rates = all(
        _factor(spec, step, plan.length_at(step)) == _factor(spec, step, plan.steps) for step in last_steps
    )
    return same_rates and plan.ramp_steps == replace(plan, lengths=()).ramp_steps


def describe_length(spec: TrainingSpec, plan: "Plan", at: int) -> str:
    """What a run's new length does to the learning rate from step `at` on, counted from 0, and to a growing batch."""
    kind, lr = spec.schedule.kind, spec.optimizer.lr
    next_rate = f"{lr * _factor(spec, at, plan.steps):.4g} at step {at + 1:,}"
    if equals_planned_run(spec, plan, at):
        return f"learning rate ({kind}): {next_rate}, as if the run had been planned for {plan.steps:,} steps"
    previous_rate = f"{lr * _factor(spec, at - 1, plan.length_at(at - 1)):.4g} at step {at:,}"
    growing = f"; the batch grows over {plan.ramp_steps:,} steps, as it was begun" if spec.batch_ramp else ""
    return (
        f"learning rate ({kind}): {previous_rate}, {next_rate}, from where on it is that of {plan.steps:,} "
        f"steps{growing}: a run planned so would have ended otherwise"
    )


def _factor(spec: TrainingSpec, step: int, total: int) -> float:
    return rate_factor(spec.schedule, step=step, warmup=spec.warmup_steps, total=total)


def _length(recipe: Recipe) -> Sequence[Any]:
    return [getattr(recipe.training, key) for key in LENGTHS]


def _values(recipe: Recipe) -> dict[str, Any]:
    """What may change, by the path of its key."""

    def pairs() -> Iterator[tuple[str, Any]]:
        for key in (*LENGTHS, *KEYS, *MACHINES):
            yield f"training.{key}", getattr(recipe.training, key)
        for field in fields(LoggingSpec):
            yield f"logging.{field.name}", getattr(recipe.logging, field.name)

    return dict(pairs())


def _replace_values(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    """Raises ValueError where they do not fit."""

    def part(name: str) -> dict[str, Any]:
        return {key.removeprefix(name): value for key, value in values.items() if key.startswith(name)}

    training = replace(recipe.training, **part("training."))
    return replace(recipe, training=training, logging=replace(recipe.logging, **part("logging.")))

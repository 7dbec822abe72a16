"""Settings of a run that may change after its start, and the record of their changes.

These are the length, intervals, `keep`, patience, activation checkpointing, hardware and logging. `recipe.yaml` keeps
the initial settings. Each change is an entry of `run.json`, which is replaced atomically: if a process is killed, the
run is in the state before or after the change. A change applies from the step at which it was made, so a step is a
function of (seed, step, changes). A run that resumes from an older checkpoint computes the steps before a change of the
length with the earlier length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.checkpoint.run_record import RECIPE, RECORD, Change, RunRecord, read_record
from tercet.config import UserError, to_plain
from tercet.messages import counted, show
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

# Keys of `training` that may change, in addition to those of the length.
KEYS = ("validate_every", "save_every", "log_every", "keep", "patience", "activation_checkpointing")
# Keys of `training` for the hardware. Unlike other changes, their values are always those of the newest command.
MACHINES = ("devices", "nodes", "strategy", "rank_timeout", "reshard_after_forward", "cpu_offload")
MAY_CHANGE = tuple(f"training.{key}" for key in (*LENGTHS[:2], *KEYS, *MACHINES))


def read_recipe(run: Path | str) -> Recipe:
    """Return the current recipe of a run, with all changes since its start.

    Raises:
        UserError: If the folder contains no run, or its recipe or record is damaged.
    """
    record = read_record(Path(run))
    return apply_changes(read_initial_recipe(Path(run), record), record, Path(run))


def read_initial_recipe(run: Path, record: RunRecord | None) -> Recipe:
    """Return the recipe with which a run was started.

    Args:
        run: Folder of the run.
        record: Record of the run, against whose hash the recipe is checked; None for no check.

    Raises:
        UserError: If the folder contains no recipe, or the recipe is damaged.
    """
    path = run / RECIPE
    if record is not None:
        record.check_file(run, RECIPE)
    return parse_recipe(read_yaml(path), name=str(path), run=run)


def apply_changes(initial: Recipe, record: RunRecord | None, run: Path) -> Recipe:
    """Return the initial recipe of a run with the changes of its record.

    Raises:
        UserError: If the record contains a change of a setting that may not change, or an invalid value.
    """
    changes, allowed = () if record is None else record.changes, _values(initial)
    settings = to_plain(initial)
    for change in changes:
        if change.key not in allowed:
            raise UserError(f"{run / RECORD}: changes: {show(change.key)} cannot change; restore the file")
        part, _, key = change.key.partition(".")
        settings[part][key] = change.new
    return parse_recipe(settings, name=f"{run / RECORD}: changes", run=run) if changes else initial


def merge_changes(requested: Recipe, initial: Recipe, current: Recipe) -> Recipe:
    """Return the recipe with which a run resumes, given the recipe of the new command.

    A setting of the new command that equals the initial recipe is not a change, so that repeating the original command
    keeps later changes. A setting that differs from the initial recipe is applied. Hardware settings are always those
    of the new command.

    Args:
        requested: Recipe of the new command.
        initial: Recipe with which the run was started.
        current: Initial recipe with all recorded changes.
    """
    requested_values, initial_values, values = _values(requested), _values(initial), _values(current)
    lengths = [f"training.{key}" for key in LENGTHS]  # alternatives: changed together
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
    """Return `recipe` with another length in steps.

    If the last extension of an unfinished run was the same `More`, the length is kept, because the command was
    repeated.

    Args:
        current: Current recipe of the run.
        recipe: Recipe with which the run resumes.
        record: Record of the run; None if it has not started.
        out: Folder of the run.
        length: New length.

    Raises:
        UserError: If there is no run to extend, the number of steps is invalid, or `recipe` also changes the length.
    """
    flag = "--more" if isinstance(length, More) else "--until"
    steps: Any = length.steps  # may be any type if called from Python
    try:
        check_range(flag, steps, Steps)
    except ValueError as error:
        raise UserError(error) from None
    if not isinstance(steps, int):
        raise UserError(f"{flag}={show(steps)} must be a whole number")
    if record is None:
        raise UserError(f"{flag}: no run to extend in {out}; set training.max_steps instead")
    if _length(recipe) != _length(current):
        raise UserError(f"{flag} conflicts with another length in the recipe or in --set; leave out one of them")
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
    """Check that a run can have the length of a new recipe.

    Args:
        out: Folder of the run.
        old: Current recipe.
        new: New recipe.
        record: Record of the run; None if it has not started.
        steps: New number of steps; None if it is not yet known.

    Raises:
        UserError: If the length changes, and is in hours or at most the number of saved steps.
    """
    if record is None or _length(old) == _length(new):
        return
    if new.training.max_hours is not None:
        raise UserError(f"cannot change max_hours of a started run: {out}; pass --more STEPS or --until STEPS")
    if steps is not None and steps <= record.saved:
        saved = counted(record.saved, "step", "steps")
        raise UserError(f"{out} already has {saved}, but {steps:,} requested; choose a larger number")


def check_devices(out: Path, old: Recipe, new: Recipe) -> None:
    """Check that a run can use the number of devices of a new recipe.

    Raises:
        UserError: If the number of data-parallel devices changes and the batches depend on it.
    """
    if old.training.data_parallel_size == new.training.data_parallel_size:
        return
    if new.training.batch_ramp is not None:
        reason = "training.batch_ramp grows the batch by one micro-batch per device"
    elif isinstance(new.task, TranslationTaskSpec) and not isinstance(new.task.micro_batch_tokens, int):
        reason = "without task.micro_batch_tokens, the batches of pairs depend on the number of devices"
    else:
        return
    raise UserError(
        f"cannot change the number of devices of {out}: {reason}; use {old.training.world_size}, as until now"
    )


def list_changes(old: Recipe, new: Recipe, *, step: int, steps: int) -> tuple[Change, ...]:
    """Return the changes from `old` to `new` among the settings that may change.

    Args:
        old: Current recipe of the run.
        new: Recipe with which the run resumes.
        step: Number of completed steps, after which the changes apply.
        steps: New length of the run in steps, recorded with a change of the length.
    """
    old_values, new_values = _values(old), _values(new)
    return tuple(
        Change(
            step=step, key=key, old=old_values[key], new=new_values[key],
            steps=steps if key.removeprefix("training.") in LENGTHS and new_values[key] is not None else None,
        )
        for key in old_values if old_values[key] != new_values[key]
    )  # fmt: skip


def describe_end(record: RunRecord, spec: TrainingSpec) -> str:
    """Describe the step at which a finished run ended, and the reason if it stopped early."""
    total = record.total_steps
    if record.saved >= total:
        return f"it ended at step {record.saved:,}"
    return f"it stopped at step {record.saved:,} of {total:,}, after {spec.patience} validations without improvement"


def can_resume(record: RunRecord, old: Recipe, new: Recipe) -> bool:
    """Return whether a finished run resumes with a new recipe.

    It does if its length changes, or if it stopped early and the new recipe has more patience.

    Args:
        record: Record of the finished run.
        old: Current recipe.
        new: New recipe.
    """
    old_patience, new_patience = old.training.patience, new.training.patience
    stopped_early = record.saved < record.total_steps
    has_more_patience = old_patience is not None and (new_patience is None or new_patience > old_patience)
    return _length(old) != _length(new) or (stopped_early and has_more_patience)


def plan_with_changes(plan: "Plan", record: RunRecord) -> "Plan":
    """Return a plan with the initial length of the run and all later changes of the length."""
    plan = replace(plan, steps=record.steps)
    for change in record.changes:
        if change.steps is not None:
            plan = plan.extended(change.steps, at=change.step)
    return plan


def equals_planned_run(spec: TrainingSpec, plan: "Plan", at: int) -> bool:
    """Return whether the steps before `at` are those of a run planned with the new length from the start.

    Args:
        spec: Training settings.
        plan: Plan with all lengths of the run.
        at: Step from which the newest length applies, counted from 0.
    """
    last_steps = {first - 1 for first, _ in plan.lengths if 0 < first < at} | ({at - 1} if at else set[int]())
    # If the last step under each earlier length has the same rate under the new length, the decay had not started.
    same_rates = all(
        _factor(spec, step, plan.length_at(step)) == _factor(spec, step, plan.steps) for step in last_steps
    )
    return same_rates and plan.ramp_steps == replace(plan, lengths=()).ramp_steps


def describe_length(spec: TrainingSpec, plan: "Plan", at: int) -> str:
    """Describe the effect of a new length on the learning rate and a growing batch.

    Args:
        spec: Training settings.
        plan: Plan with the new length.
        at: Step from which the new length applies, counted from 0.
    """
    kind, lr = spec.schedule.kind, spec.optimizer.lr
    next_rate = f"{lr * _factor(spec, at, plan.steps):.4g} at step {at + 1:,}"
    if equals_planned_run(spec, plan, at):
        return f"learning rate ({kind}): {next_rate}, as if the run had been planned for {plan.steps:,} steps"
    previous_rate = f"{lr * _factor(spec, at - 1, plan.length_at(at - 1)):.4g} at step {at:,}"
    growing = f"; the batch still grows over {plan.ramp_steps:,} steps" if spec.batch_ramp else ""
    return (
        f"learning rate ({kind}): {previous_rate}, {next_rate}, then as in a run of {plan.steps:,} "
        f"steps{growing}; a run planned with this length would end differently"
    )


def _factor(spec: TrainingSpec, step: int, total: int) -> float:
    return rate_factor(spec.schedule, step=step, warmup=spec.warmup_steps, total=total)


def _length(recipe: Recipe) -> Sequence[Any]:
    return [getattr(recipe.training, key) for key in LENGTHS]


def _values(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that may change, by key."""

    def pairs() -> Iterator[tuple[str, Any]]:
        for key in (*LENGTHS, *KEYS, *MACHINES):
            yield f"training.{key}", getattr(recipe.training, key)
        for field in fields(LoggingSpec):
            yield f"logging.{field.name}", getattr(recipe.logging, field.name)

    return dict(pairs())


def _replace_values(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    """Return the recipe with other settings.

    Raises:
        ValueError: If they do not fit together.
    """

    def part(name: str) -> dict[str, Any]:
        return {key.removeprefix(name): value for key, value in values.items() if key.startswith(name)}

    training = replace(recipe.training, **part("training."))
    return replace(recipe, training=training, logging=replace(recipe.logging, **part("logging.")))

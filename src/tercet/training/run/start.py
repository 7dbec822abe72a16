"""A run is started: its data is read, its model is built, and its folder says what `auto` came to."""

from dataclasses import replace

from tercet.checkpoint.run_record import RECORD, Change, read_record
from tercet.config import UserError
from tercet.storage import lock_folder
from tercet.training.optim.trainable import set_trainable
from tercet.training.recipe.pretrained import load_pretrained_weights, pretrained_folder
from tercet.training.run.reports import describe_sizes, log
from tercet.training.run.settle import settle
from tercet.training.run.states import BuiltModel, LockedRun, StartedRun
from tercet.training.run_folder.changes import check_devices, check_length, list_changes, plan_with_changes
from tercet.training.run_folder.choices import FromWeights
from tercet.training.run_folder.folder import StartPoint, find_start, recipes_of


def start_run(locked: LockedRun) -> StartedRun:
    """Build the task and the model of a run, and settle what holds to its end.

    Raises:
        UserError: If data and settings do not fit, or are no longer those that the run was begun with.
    """
    from tercet.training.compute.threads import process_threads  # with torch, of which nothing before has need

    opened = locked.opened
    opened.resources.enter_context(process_threads(opened.recipe.training))
    built = _build(locked)
    if opened.primary and not opened.begun:
        locked = replace(locked, point=_make_folder(locked))
    task, former = built.task, locked.former
    record = settle(built, opened)
    task.micro = record.micro_batch or task.micro
    changes: tuple[Change, ...] = ()
    if locked.record is not None:
        check_devices(opened.folder, former, opened.recipe)
        check_length(opened.folder, former, opened.recipe, record, task.plan.steps)
        step = record.saved if record.finished and not locked.goes_on else locked.point.step
        changes = list_changes(former, opened.recipe, step=step, steps=task.plan.steps)
        record = replace(record, changes=(*record.changes, *changes))
    task.plan = plan_with_changes(task.plan, record)
    return StartedRun(locked=locked, task=task, model=built.model, record=record, changes=changes)


def _build(locked: LockedRun) -> BuiltModel:
    """Read the data, and build the model as it begins."""
    from tercet.checkpoint import load_model
    from tercet.kernel import warm_up
    from tercet.models import build, stacks_of
    from tercet.training.distributed.devices import check_exact
    from tercet.training.tasks.open_task import task_of

    recipe, out, quiet = locked.opened.recipe, locked.opened.folder, locked.opened.quiet
    old = None if recipe.pretrained is None else load_model(pretrained_folder(recipe.pretrained, out))
    task = task_of(recipe, pretrained=old, progress=not quiet)
    try:
        model = build(task.recipe.model, seed=recipe.training.seed)
    except ValueError as error:
        raise UserError(f"model: {error}") from None
    for stack in stacks_of(model):
        stack.activation_checkpointing = recipe.training.activation_checkpointing
    new: tuple[str, ...] = ()
    if old is not None:
        taken = load_pretrained_weights(model, old.model, str(recipe.pretrained))
        new = taken.new
        if not (out / RECORD).exists():
            of = str(recipe.pretrained)
            log(f"{taken.describe(of)}; {describe_sizes(task.recipe.model, old.model.spec)}", quiet)
    set_trainable(model, new, freeze=recipe.freeze, adapter=recipe.adapter, seed=recipe.training.seed)
    warm_up()  # before anything is timed, and after every mistake has been told
    check_exact(recipe.training)
    return BuiltModel(task, model, old)


def _make_folder(locked: LockedRun) -> StartPoint:
    """Make the folder of a run that begins, and lock it; return where it starts."""
    opened, folder = locked.opened, locked.opened.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; give another --out") from None
    opened.resources.enter_context(lock_folder(folder))
    recipes_of(folder, opened.recipe, read_record(folder))  # another process may have been here meanwhile
    for note in opened.notes:
        log(note, opened.quiet)
    return find_start(folder, locked.checkpoints, from_weights=isinstance(opened.start, FromWeights))

"""Third stage of a run: read the data, build the model, and read or write the record of the run."""

from dataclasses import replace

from tercet.checkpoint.run_record import RECORD, Change, read_record
from tercet.config import UserError
from tercet.storage import lock_folder
from tercet.training.optim.trainable import set_trainable
from tercet.training.recipe.pretrained import load_pretrained_weights, pretrained_folder
from tercet.training.recipe.recipe import LabelsRecipe, Recipe, objective_of
from tercet.training.run.reports import describe_sizes, log
from tercet.training.run.settle import read_or_create_record
from tercet.training.run.states import BuiltModel, LockedRun, StartedRun
from tercet.training.run_folder.changes import check_devices, check_length, list_changes, plan_with_changes
from tercet.training.run_folder.choices import FromWeights
from tercet.training.run_folder.folder import StartPoint, check_recipe, find_start


def start_run(locked_run: LockedRun) -> StartedRun:
    """Build the task and the model of a run, and read or create its record.

    Raises:
        UserError: If data and settings do not fit together, or differ from those that the run was started with.
    """
    from tercet.training.compute.threads import process_threads  # imports torch, which earlier stages do not need

    opened_run = locked_run.opened_run
    opened_run.resources.enter_context(process_threads(opened_run.recipe.training))
    built_model = _build(locked_run)
    if opened_run.primary and not opened_run.exists:
        locked_run = replace(locked_run, point=_make_folder(locked_run))
    task, former = built_model.task, locked_run.former
    record = read_or_create_record(built_model, opened_run)
    if locked_run.replaced_run is not None:
        locked_run.replaced_run.delete()
    task.micro = record.micro_batch or task.micro
    changes: tuple[Change, ...] = ()
    if locked_run.record is not None:
        check_devices(opened_run.folder, former, opened_run.recipe)
        check_length(opened_run.folder, former, opened_run.recipe, record, task.plan.steps)
        step = record.saved if record.finished and not locked_run.is_extended else locked_run.point.step
        changes = list_changes(former, opened_run.recipe, step=step, steps=task.plan.steps)
        record = replace(record, changes=(*record.changes, *changes))
    task.plan = plan_with_changes(task.plan, record)
    return StartedRun(locked_run=locked_run, task=task, model=built_model.model, record=record, changes=changes)


def _build(locked_run: LockedRun) -> BuiltModel:
    """Read the data, and build the model with its initial weights."""
    from tercet.checkpoint import load_model
    from tercet.kernel import warm_up
    from tercet.models import build, stacks_of
    from tercet.training.distributed.devices import check_exact
    from tercet.training.tasks.open_task import task_of

    recipe, out, quiet = locked_run.opened_run.recipe, locked_run.opened_run.folder, locked_run.opened_run.quiet
    pretrained = None if recipe.pretrained is None else load_model(pretrained_folder(recipe.pretrained, out))
    task = task_of(recipe, pretrained=pretrained, progress=not quiet)
    _check_objective(task.recipe)
    try:
        model = build(task.recipe.model, seed=recipe.training.seed)
    except ValueError as error:
        raise UserError(f"model: {error}") from None
    for stack in stacks_of(model):
        stack.activation_checkpointing = recipe.training.activation_checkpointing
    new_names: tuple[str, ...] = ()
    if pretrained is not None:
        loaded = load_pretrained_weights(model, pretrained.model, str(recipe.pretrained))
        new_names = loaded.new
        if not (out / RECORD).exists():
            name = str(recipe.pretrained)
            sizes = describe_sizes(task.recipe.model, pretrained.model.spec, task.recipe.row_len)
            log(f"{loaded.describe(name)}; {sizes}", quiet)
    set_trainable(model, new_names, freeze=recipe.freeze, adapter=recipe.adapter, seed=recipe.training.seed)
    warm_up()  # before anything is timed, and after all errors were reported
    check_exact(recipe.training)
    return BuiltModel(task, model, pretrained)


def _check_objective(recipe: Recipe) -> None:
    """Try an objective of another package on a few logits, so that its errors are reported before a folder is made.

    Raises:
        UserError: If it does not return a finite loss with a gradient for each target.
    """
    from tercet.objectives.custom import check_objective

    objective = objective_of(recipe)
    if objective is None:
        return
    if isinstance(recipe, LabelsRecipe):
        head = recipe.classifier
        check_objective(objective, n_classes=max(1, len(head.labels)), problem_type=head.problem_type)
    else:
        check_objective(objective, n_classes=recipe.model.vocab_size)


def _make_folder(locked_run: LockedRun) -> StartPoint:
    """Create and lock the folder of a new run, and return the start point.

    Raises:
        UserError: If the folder cannot be created, or another process has created a different run in it.
    """
    opened_run, folder = locked_run.opened_run, locked_run.opened_run.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {folder}: {error.strerror}; pass another --out") from None
    opened_run.resources.enter_context(lock_folder(folder))
    # Another process may have created a run there in the meantime.
    check_recipe(folder, opened_run.recipe, read_record(folder))
    for note in opened_run.notes:
        log(note, opened_run.quiet)
    return find_start(folder, locked_run.checkpoints, from_weights=isinstance(opened_run.start, FromWeights))

"""Second stage of a run: lock its folder, and find its current recipe and start point."""

from dataclasses import replace

from tercet.checkpoint.run_record import RECORD
from tercet.storage import lock_folder
from tercet.training.run.states import LockedRun, OpenedRun
from tercet.training.run_folder.changes import can_resume
from tercet.training.run_folder.checkpoints import Checkpoints
from tercet.training.run_folder.choices import FromWeights, Restart
from tercet.training.run_folder.folder import find_recipes, find_start
from tercet.training.run_folder.restart import FormerRun


def lock_run(opened_run: OpenedRun) -> LockedRun:
    """Lock the folder of an existing run, and find its record, its recipe and its start point.

    Only rank 0 locks the folder. With `Restart`, it also sets the existing run aside. The folder of a new run is
    locked later, when it is created.

    Raises:
        FolderInUse: If another process trains in the folder.
        UserError: If the folder contains a run with other settings, or no usable checkpoint is left.
    """
    folder, recipe, start = opened_run.folder, opened_run.recipe, opened_run.start
    if opened_run.primary and opened_run.exists:
        opened_run.resources.enter_context(lock_folder(folder))
    record, former, replaced_run = None, recipe, None
    if isinstance(start, Restart):
        if opened_run.primary:
            replaced_run = opened_run.resources.enter_context(FormerRun(folder, recipe))
    else:
        record, former, recipe = find_recipes(folder, recipe, start, is_current=opened_run.from_run)
    checkpoints = Checkpoints(folder, recipe.training.keep)
    is_extended = record is not None and record.finished and can_resume(record, former, recipe)
    point = find_start(folder, checkpoints, from_weights=isinstance(start, FromWeights), is_extended=is_extended)
    if opened_run.primary and point.weights is not None and record is None:
        (folder / RECORD).unlink(missing_ok=True)  # a damaged record, which is written again from the recipe
    return LockedRun(
        opened_run=replace(opened_run, recipe=recipe),
        former=former,
        record=record,
        checkpoints=checkpoints,
        point=point,
        is_extended=is_extended,
        replaced_run=replaced_run,
    )

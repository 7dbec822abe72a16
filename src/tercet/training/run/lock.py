"""A run is locked: no other process trains in its folder, which says by which recipe it goes on, and from where."""

from dataclasses import replace

from tercet.checkpoint.run_record import RECORD
from tercet.storage import lock_folder
from tercet.training.run.states import LockedRun, OpenedRun
from tercet.training.run_folder.changes import can_resume
from tercet.training.run_folder.checkpoints import Checkpoints
from tercet.training.run_folder.choices import FromWeights, Restart
from tercet.training.run_folder.folder import find_recipes, find_start, remove_run


def lock_run(opened: OpenedRun) -> LockedRun:
    """Lock a run that has begun, and find out how it goes on. A folder without a run is locked once it is made.

    Raises:
        FolderInUse: If another process trains there.
        UserError: If the folder holds a run with other settings, or what the run would go on from is lost.
    """
    folder, recipe, start = opened.folder, opened.recipe, opened.start
    if opened.primary and opened.begun:
        opened.resources.enter_context(lock_folder(folder))
    record, former = None, recipe
    if isinstance(start, Restart):
        if opened.primary:
            remove_run(folder, recipe)
    else:
        record, former, recipe = find_recipes(folder, recipe, start, is_current=opened.is_own)
    checkpoints = Checkpoints(folder, recipe.training.keep)
    goes_on = record is not None and record.finished and can_resume(record, former, recipe)
    point = find_start(folder, checkpoints, from_weights=isinstance(start, FromWeights), is_extended=goes_on)
    if opened.primary and point.weights is not None and record is None:
        (folder / RECORD).unlink(missing_ok=True)  # a damaged one; what it said is settled anew
    return LockedRun(
        opened=replace(opened, recipe=recipe),
        former=former,
        record=record,
        checkpoints=checkpoints,
        point=point,
        goes_on=goes_on,
    )

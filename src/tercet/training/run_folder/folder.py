"""Check the folder of a run before training, and choose the start point.

A run folder contains:

recipe.yaml  run.json  metrics.csv  loss.png  samples/  best/  last/  checkpoints/  (pretrained/)
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint.run_record import FORECAST, PILOTS, RECIPE, RECORD, RunRecord, read_record
from tercet.config import UserError, find_differences, to_plain
from tercet.messages import counted, print_note
from tercet.storage import DamagedFile, read_manifest, write_atomically
from tercet.training.recipe.files import LENGTHS
from tercet.training.recipe.pretrained import PRETRAINED_COPY
from tercet.training.recipe.recipe import Recipe
from tercet.training.run_folder.changes import (
    KEYS,
    MACHINES,
    MAY_CHANGE,
    apply_changes,
    check_length,
    merge_changes,
    read_initial_recipe,
    set_length,
)
from tercet.training.run_folder.checkpoints import FOLDER, METRICS, Checkpoint, Checkpoints
from tercet.training.run_folder.choices import FromWeights, RecipeLength, Resume

if TYPE_CHECKING:
    from tercet.checkpoint import TrainedModel
    from tercet.models import AnyModel
MODELS = ("last", "best")  # newest first
TRACKERS = ("tensorboard", "wandb", "mlflow")  # folders of trackers
# A restart moves the recipe last: if the process is killed before, the folder is still recognized as a run.
BEFORE_RUN = (FORECAST, PILOTS)  # written before the run starts
PARTS = (RECORD, METRICS, "loss.png", "samples", *MODELS, FOLDER, PRETRAINED_COPY, *TRACKERS, *BEFORE_RUN, RECIPE)
MAX_DIFFERENCES = 3  # listed in the error about a run with other settings
SHOWN_FIRST = ("pretrained", "task.kind", "data.source", "data.target", "training.optimizer.lr", "training.seed")
CHOICES = "pass --from-weights to continue from its last model, or --restart to delete it and start again"


@dataclass(frozen=True)
class StartPoint:
    """The start of training: a checkpoint, the weights of a saved model, or step 0.

    Args:
        step: Number of steps that are already trained.
        checkpoint: Checkpoint from which the run resumes; None if it starts from `weights` or at step 0.
        weights: Saved model whose weights are used with a new optimizer; None otherwise.
    """

    step: int = 0
    checkpoint: Checkpoint | None = None
    weights: "TrainedModel | None" = None


def check_recipe(
    out: Path, recipe: Recipe, record: RunRecord | None, *, is_current: bool = False
) -> tuple[Recipe, Recipe]:
    """Check that the run in a folder can be resumed with a recipe.

    A folder contains one run. Only the settings in `MAY_CHANGE` and `logging` may change when it is resumed.

    Args:
        out: Folder of the run.
        recipe: Recipe of the command.
        record: Record of the run; None if it has not started.
        is_current: If True, `recipe` is the current recipe of the run with the changes of the command. If False, it is
            compared with the initial recipe of the run, and only its differences from that are changes.

    Returns:
        The current recipe of the run and the recipe with which it resumes. Without a run, both are `recipe`.

    Raises:
        UserError: If `out` contains another run or other files.
    """
    # Listed before the check for the recipe: another process of the same run may write the recipe, its first file, now.
    names = os.listdir(out) if out.is_dir() else []
    if not (out / RECIPE).exists():
        if RECORD in names:
            raise UserError(
                f"{out / RECIPE} is missing; restore it, or pass --restart to delete the run and start again"
            )
        # A run that was killed at its start may have left hidden files.
        if any(not name.startswith(".") and name not in BEFORE_RUN for name in names):
            raise UserError(f"{out} is not empty and contains no run; pass another --out")
        return recipe, recipe
    initial = read_initial_recipe(out, record)
    current = apply_changes(initial, record, out)
    recipe = recipe if is_current else merge_changes(recipe, initial, current)
    old, new = to_plain(current), to_plain(recipe)
    for settings in (old, new):
        for size in ("vocab_size", "source_vocab_size"):  # determined by the tokenizers
            settings["model"].pop(size, None)
        if settings["model"].get("classifier"):
            for key in ("labels", "target_mean", "target_std"):  # determined by the data
                settings["model"]["classifier"].pop(key)
        del settings["logging"]
        for key in (*LENGTHS, *KEYS, *MACHINES):
            del settings["training"][key]
    if new["pretrained"] == str(out / PRETRAINED_COPY):  # the copy of the original
        new["pretrained"] = old["pretrained"]
    if differences := find_differences(old, new):
        first = sorted(differences, key=lambda line: line.partition(":")[0] not in SHOWN_FIRST)[:MAX_DIFFERENCES]
        rest = len(differences) - len(first)
        more = [f"and {rest} more: compare {out / RECIPE} with the output of --print-config"] if rest else []
        raise UserError(
            f"{out} contains a run with other settings ({'; '.join([*first, *more])}); pass another --out, or "
            f"--restart to delete the run (after its start, only {', '.join(MAY_CHANGE)} and logging may change)"
        )
    return current, recipe


def find_recipes(
    out: Path, recipe: Recipe, start: Resume | FromWeights, *, is_current: bool
) -> tuple[RunRecord | None, Recipe, Recipe]:
    """Return the record of the run in `out`, its current recipe and the recipe with which it resumes.

    Without a run, the record is None and both recipes are `recipe`. A damaged record counts as None if the run starts
    from weights.

    Args:
        out: Folder of the run.
        recipe: Recipe of the command.
        start: Requested start point and length.
        is_current: As in `check_recipe`.

    Raises:
        UserError: If the folder contains another run or other files, the record is damaged or missing, or the requested
            length is not possible.
    """
    record = find_record(out, from_weights=isinstance(start, FromWeights))
    current, recipe = check_recipe(out, recipe, record, is_current=is_current)
    if not isinstance(start.length, RecipeLength):
        recipe = set_length(current, recipe, record, out, start.length)
    check_length(out, current, recipe, record, recipe.training.max_steps)
    return record, current, recipe


def check_finished(out: Path, record: RunRecord) -> None:
    """Check the models and metrics of a finished run against their hashes.

    Raises:
        UserError: If a file is damaged.
    """
    for folder in (out / name for name in MODELS):
        if (manifest := read_manifest(folder)) is not None:
            manifest.check(folder)
    record.check_file(out, METRICS)


def find_record(out: Path, *, from_weights: bool) -> RunRecord | None:
    """Return the record of a run; None if the run has not started.

    Args:
        out: Folder of the run.
        from_weights: If True, return None for a damaged or missing record.

    Raises:
        UserError: If the record is damaged, or it is missing although the folder contains models or checkpoints.
    """
    if from_weights:
        try:
            return read_record(out)
        except UserError:
            return None
    # Without a record, checkpoints cannot be used, and --from-weights is rejected if there are any.
    remedy = f"remove {out / FOLDER} and {CHOICES}" if (out / FOLDER).exists() else CHOICES
    try:
        record = read_record(out)
    except DamagedFile as error:
        raise UserError(f"{error}; or {remedy}") from None
    if record is None and (out / RECIPE).exists() and any((out / name).exists() for name in (*MODELS, FOLDER)):
        raise UserError(f"{out / RECORD} is missing; restore it, or {remedy}")
    return record


def find_start(out: Path, checkpoints: Checkpoints, *, from_weights: bool, is_extended: bool = False) -> StartPoint:
    """Return the start point of a run: its newest undamaged checkpoint, or step 0 if no step was saved.

    For a finished run that is not resumed, the result is `StartPoint()`.

    Args:
        out: Folder of the run.
        checkpoints: Checkpoints of the run.
        from_weights: If True, start from the weights of the newest undamaged model instead.
        is_extended: If True, resume the run even if it is finished.

    Raises:
        UserError: If a run with saved steps has no undamaged checkpoint; with `from_weights`, if it has one, or has no
            undamaged model.
    """
    record = find_record(out, from_weights=from_weights)
    if record is not None and record.finished and not is_extended:
        return StartPoint()
    checkpoint = checkpoints.newest()
    if from_weights:
        if checkpoint is not None:
            raise UserError(f"{out} has an undamaged checkpoint of step {checkpoint.step}; leave out --from-weights")
        weights = _newest_model(out)
        return StartPoint(weights.card.step, weights=weights)
    if checkpoint is not None:
        return StartPoint(checkpoint.step, checkpoint)
    if record is not None and record.saved:
        reason = "; ".join(checkpoints.damaged.values()) or f"{out / FOLDER} contains no checkpoint"
        raise UserError(
            f"cannot resume {out}: {counted(record.saved, 'step was', 'steps were')} trained, but {reason}; {CHOICES}"
        )
    return StartPoint()


def check_checkpoint(checkpoint: Checkpoint, model: "AnyModel", recipe: Recipe, *, fp16: bool) -> None:
    """Compare a checkpoint with the model and optimizer of the run, before anything is written.

    Args:
        checkpoint: Checkpoint from which the run resumes.
        model: Whole model that is trained.
        recipe: Recipe of the run.
        fp16: If True, accept an optimizer without state, as in `check_state`.

    Raises:
        UserError: If the checkpoint belongs to another model or is damaged.
    """
    from tercet.training.run_folder.saved_state import check_state, read_state

    try:
        check_state(checkpoint.folder, read_state(checkpoint.state), model, recipe, fp16=fp16)
    except UserError as error:
        raise UserError(
            f"{error}; remove {checkpoint.folder} to resume from an earlier one, or remove {checkpoint.folder.parent} "
            f"and {CHOICES}"
        ) from None


def _newest_model(out: Path) -> "TrainedModel":
    """Return the last model of a run, or the best model if the last is damaged or missing.

    Raises:
        UserError: If neither can be loaded.
    """
    from tercet.checkpoint import load_model

    damage: list[str] = []
    for name in MODELS:
        if (out / name).is_dir():
            try:
                return load_model(out / name)
            except UserError as error:
                damage.append(str(error))
    reason = "; ".join(damage) or f"{out} has neither last/ nor best/"
    raise UserError(
        f"--from-weights requires a saved model: {reason}; pass --restart to delete the run and start again"
    )


def restore_metrics(out: Path, start: StartPoint) -> None:
    """Restore `metrics.csv` to the metrics of the steps before training starts.

    These are the lines saved with the checkpoint, or else the lines up to `start.step`. A file without such lines is
    removed.
    """
    path = out / METRICS
    current = path.read_bytes() if path.is_file() else b""
    if start.checkpoint is None:
        restored = _cut_lines(current, start.step)
    else:
        restored = start.checkpoint.metrics.read_bytes() if start.checkpoint.metrics.exists() else b""
        if not current.startswith(restored):
            print_note(f"{path} was damaged or missing; restored to step {start.step}")
    if not restored:
        path.unlink(missing_ok=True)
    elif restored != current:
        write_atomically(path, restored)


def _cut_lines(metrics: bytes, step: int) -> bytes:
    """Return the content of `metrics.csv` without the lines after `step`.

    A partial last line, which a killed process may have left, is removed too. The result is empty if only the header
    would remain.
    """
    head, *lines = metrics.splitlines(keepends=True) or [b""]
    steps = (re.match(rb"(\d{1,18}),.*\n$", line) for line in lines)
    kept_lines = [match[0] for match in steps if match and int(match[1]) <= step]
    return b"".join([head, *kept_lines]) if kept_lines else b""

"""A run's folder before it is trained in: whether it may be, and where it goes on from.

recipe.yaml  run.json  metrics.csv  loss.png  samples/  best/  last/  checkpoints/  (pretrained/)
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint.run_record import RECIPE, RECORD, RunRecord, read_record
from tercet.config import UserError, find_differences, to_plain
from tercet.messages import print_note
from tercet.storage import DamagedFile, read_manifest, report_write_errors, write_atomically
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
MODELS = ("last", "best")  # the newest first
# The recipe last: after a kill in between, what is left is still known as a run.
PARTS = (RECORD, METRICS, "loss.png", "samples", *MODELS, FOLDER, PRETRAINED_COPY, "tensorboard", "wandb", RECIPE)
CHOICES = "--from-weights goes on from the weights of its last model, --restart deletes it and begins anew"


@dataclass(frozen=True)
class StartPoint:
    """Where training begins: at a checkpoint; or with the weights of a model that was saved, and an optimizer that
    remembers nothing; or at step 0."""

    step: int = 0
    checkpoint: Checkpoint | None = None
    weights: "TrainedModel | None" = None


def recipes_of(
    out: Path, recipe: Recipe, record: RunRecord | None, *, is_current: bool = False
) -> tuple[Recipe, Recipe]:
    """A folder holds one run. Its length may change, and how often it looks, saves and logs; all else that changes the
    model may not.

    Args:
        record: what the run noted of itself, as of its recipe.
        is_current: `recipe` is the run's as it is now, with changes laid over it, and not the one that it
            was begun with.

    Returns:
        the run's recipe as it is now, and the one by which it goes on; twice `recipe` where there is no run.

    Raises:
        UserError: where `out` holds another run, or something else.
    """
    if out.is_file():
        raise UserError(f"--out {out} is a file; give a folder")
    # Listed before the recipe is looked for, which is the first file that another of the run's processes writes.
    names = os.listdir(out) if out.is_dir() else []
    if not (out / RECIPE).exists():
        if RECORD in names:
            raise UserError(f"{out / RECIPE} is missing; put it back, or: --restart deletes the run and begins anew")
        # Hidden files may be what a run left that was killed at its very beginning.
        if any(not name.startswith(".") for name in names):
            raise UserError(f"{out} is not empty and holds no run; give another --out")
        return recipe, recipe
    initial = read_initial_recipe(out, record)
    current = apply_changes(initial, record, out)
    recipe = recipe if is_current else merge_changes(recipe, initial, current)
    old, new = to_plain(current), to_plain(recipe)
    for settings in (old, new):
        for size in ("vocab_size", "source_vocab_size"):  # the tokenizers' to say
            settings["model"].pop(size, None)
        if settings["model"].get("classifier"):
            for key in ("labels", "target_mean", "target_std"):  # the data's
                settings["model"]["classifier"].pop(key)
        del settings["logging"]
        for key in (*LENGTHS, *KEYS, *MACHINES):
            del settings["training"][key]
    if new["pretrained"] == str(out / PRETRAINED_COPY):  # the copy of what it was begun with
        new["pretrained"] = old["pretrained"]
    if differences := find_differences(old, new):
        raise UserError(
            f"{out} holds a run with other settings ({'; '.join(differences)}); give another --out, or --restart, "
            f"which deletes it (of a run that has begun, only {', '.join(MAY_CHANGE)} and logging may change)"
        )
    return current, recipe


def find_recipes(
    out: Path, recipe: Recipe, start: Resume | FromWeights, *, is_current: bool
) -> tuple[RunRecord | None, Recipe, Recipe]:
    """What the run in `out` noted of itself, its recipe as it is now, and the one by which it is to go on; without a
    run, nothing and `recipe` twice."""
    record = find_record(out, from_weights=isinstance(start, FromWeights))
    current, recipe = recipes_of(out, recipe, record, is_current=is_current)
    if not isinstance(start.length, RecipeLength):
        recipe = set_length(current, recipe, record, out, start.length)
    check_length(out, current, recipe, record, recipe.training.max_steps)
    return record, current, recipe


def check_finished(out: Path, record: RunRecord) -> None:
    """Compare the models and the figures of a finished run with what was written.

    Raises:
        UserError: where one is damaged.
    """
    for folder in (out / name for name in MODELS):
        if (manifest := read_manifest(folder)) is not None:
            manifest.check(folder)
    record.check_file(out, METRICS)


def remove_run(out: Path, recipe: Recipe) -> None:
    """Delete a run; other files in its folder stay.

    Raises:
        UserError: where `out` holds none, or the recipe needs a model in it.
    """
    if not any((out / name).exists() for name in (RECIPE, RECORD)):
        if out.exists():
            recipes_of(out, recipe, None)
        return
    if recipe.pretrained is not None and Path(recipe.pretrained).resolve().is_relative_to(out.resolve()):
        raise UserError(f"--restart would delete {recipe.pretrained}, which the run begins with; give another --out")
    for path in (out / name for name in PARTS):
        with report_write_errors(path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def find_record(out: Path, *, from_weights: bool) -> RunRecord | None:
    """What the run noted of itself; None before it has begun, or where that is lost and the weights are to do.

    Raises:
        UserError: where it is damaged or missing, with the choices.
    """
    if from_weights:
        try:
            return read_record(out)
        except UserError:
            return None
    try:
        record = read_record(out)
    except DamagedFile as error:
        raise UserError(f"{error}; or: {CHOICES}") from None
    if record is None and (out / RECIPE).exists() and any((out / name).exists() for name in (*MODELS, FOLDER)):
        raise UserError(f"{out / RECORD} is missing; put it back, or: {CHOICES}")
    return record


def find_start(out: Path, checkpoints: Checkpoints, *, from_weights: bool, is_extended: bool = False) -> StartPoint:
    """The newest whole checkpoint, or what was chosen in its place; nothing of a run at its end that stays there.

    Args:
        is_extended: whether a run at its end goes on.

    Raises:
        UserError: where a run that has trained has nothing to go on from, with the choices.
    """
    record = find_record(out, from_weights=from_weights)
    if record is not None and record.finished and not is_extended:
        return StartPoint()
    checkpoint = checkpoints.newest()
    if from_weights:
        if checkpoint is not None:
            raise UserError(f"{out} has a whole checkpoint of step {checkpoint.step}; leave --from-weights out")
        weights = _newest_model(out)
        return StartPoint(weights.card.step, weights=weights)
    if checkpoint is not None:
        return StartPoint(checkpoint.step, checkpoint)
    if record is not None and record.saved:
        reason = "; ".join(checkpoints.damaged.values()) or f"no checkpoint is left in {out / FOLDER}"
        raise UserError(f"{out} has trained {record.saved:,} steps and has nothing to go on from: {reason}; {CHOICES}")
    return StartPoint()


def check_checkpoint(checkpoint: Checkpoint, model: "AnyModel", recipe: Recipe, *, fp16: bool) -> None:
    """Compare the checkpoint that a run resumes from with its model and optimizer, before anything is written.

    Raises:
        UserError: If it belongs to another model or is damaged.
    """
    from tercet.training.run_folder.saved_state import check_state, read_state

    try:
        check_state(checkpoint.folder, read_state(checkpoint.state), model, recipe, fp16=fp16)
    except UserError as error:
        raise UserError(f"{error}; remove {checkpoint.folder} to resume from an earlier one, or: {CHOICES}") from None


def _newest_model(out: Path) -> "TrainedModel":
    """Raises:
    UserError: where none is whole.
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
    raise UserError(f"--from-weights needs a whole model: {reason}; --restart deletes the run and begins anew")


def restore_metrics(out: Path, start: StartPoint) -> None:
    """The figures of the steps that are behind the run, and no others, in `metrics.csv`."""
    path = out / METRICS
    current = path.read_bytes() if path.is_file() else b""
    if start.checkpoint is None:
        restored = _cut_lines(current, start.step)
    else:
        restored = start.checkpoint.metrics.read_bytes() if start.checkpoint.metrics.exists() else b""
        if not current.startswith(restored):
            print_note(f"{path} was damaged or missing: it is that of step {start.step} again")
    if not restored:
        path.unlink(missing_ok=True)
    elif restored != current:
        write_atomically(path, restored)


def _cut_lines(metrics: bytes, step: int) -> bytes:
    """Without the lines after `step`, and one that a killed process left half-written; nothing where only the names of
    the columns are left."""
    head, *lines = metrics.splitlines(keepends=True) or [b""]
    steps = (re.match(rb"(\d{1,18}),.*\n$", line) for line in lines)
    kept_lines = [match[0] for match in steps if match and int(match[1]) <= step]
    return b"".join([head, *kept_lines]) if kept_lines else b""

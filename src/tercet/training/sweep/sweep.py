"""Sweeps: training of several variants of recipes, which are all checked before the first is trained.

Each variant is trained as one ordinary run per seed, or per seed and fold of cross-validation. A sweep that was killed
resumes with the run that it was training. The folder of a sweep contains:

    settings.json              the requested settings, and `precision` and `matmul` chosen for `auto` for all runs
    placement=pre,seed=1/ ...  the runs
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.checkpoint.run_record import RECIPE, RECORD, read_record
from tercet.config import Plain, UserError, suggest, to_plain
from tercet.data import Fold
from tercet.data.corpora.find_sources import check_sources
from tercet.messages import print_note
from tercet.training.loop.loggers import check_loggers
from tercet.training.recipe.files import read_settings, recipe_names
from tercet.training.recipe.other_data import describe_other_data
from tercet.training.recipe.recipe import Recipe, load_recipe
from tercet.training.run.fit import RunDiverged
from tercet.training.run.train import train
from tercet.training.run_folder.folder import check_recipe
from tercet.training.sweep.cross_validation import check_division, check_folds, describe_division, make_folds, set_fold
from tercet.training.sweep.grid import GridPoint, VariedKey, folder_names, grid_points
from tercet.training.sweep.sweep_folder import check_out, settle_arithmetic

if TYPE_CHECKING:
    from tercet.training.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A run that a sweep trains, or a finished run that it is compared with.

    Attributes:
        variant: Name of the variant, without the seed.
        folder: Run folder, or folder of a model.
        settings: Label of each varied value by short key, for tables. The key "recipe" is the name of the recipe or
            run.
        recipe: Recipe with the seed; None for a finished run.
        seed: Seed; None for a finished run.
        fold: Number of the fold of cross-validation that is the validation part, from 1; None without folds.
    """

    variant: str
    folder: Path
    settings: dict[str, str]
    recipe: Recipe | None = None
    seed: int | None = None
    fold: int | None = None

    @property
    def name(self) -> str:
        seed = "" if self.seed is None else f", seed={self.seed}"
        return f"{self.variant}{seed}{'' if self.fold is None else f', fold={self.fold}'}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A planned sweep.

    Attributes:
        out: Folder of the sweep.
        runs: Runs to train and finished runs, with the seeds of a variant next to each other.
        requested: Requested settings, for `settings.json`.
        folds: Number of folds of cross-validation; None without folds.
        notes: One line per recipe that gets other data: settings that change with it, and those that are kept.
    """

    out: Path
    runs: tuple[SweepRun, ...]
    requested: Plain
    folds: int | None = None
    notes: tuple[str, ...] = ()


def plan_sweep(
    names: Sequence[str],
    *,
    varied_keys: Sequence[VariedKey] = (),
    seeds: Sequence[int] | None = None,
    folds: int | None = None,
    changes: Mapping[str, Any] | None = None,
    out: Path,
) -> Sweep:
    """Plan a sweep from its recipes, without reading data or writing anything.

    Args:
        names: Recipes, and folders of finished runs or models.
        varied_keys: Keys to vary, and their values.
        seeds: Seeds of each variant; None for the seed of `changes` or else of the first recipe.
        folds: Number of folds of cross-validation: each variant is trained once per seed and fold, and the seed also
            divides the data. None for the validation part of the recipes.
        changes: Changes to all recipes, as nested mappings.
        out: Folder of the sweep.

    Raises:
        UserError: If a name is neither a recipe nor a finished run, a key or value is invalid, data is missing, two
            variants are the same, there is one run, folds do not apply, or `out` contains something else.
    """
    changes = changes or {}
    recipes = [name for name in names if not is_run(name)]
    _check_scope(names, recipes, varied_keys, changes, seeds, folds)
    points = grid_points(varied_keys, fixed_changes=changes)
    if recipes and seeds is None:
        seeds = (load_recipe(recipes[0], points[0].changes).training.seed,)
    requested = {
        "recipes and runs": list(names),
        "vary": {choice.key: list(choice.labels) for choice in varied_keys},
        "set": dict(changes),
        "seeds": list(seeds or ()),
        **({} if folds is None else {"folds": folds}),
    }
    return plan_variants(names, points, seeds=seeds or (), folds=folds, out=out, requested=requested)


def plan_variants(
    names: Sequence[str],
    points: Sequence[GridPoint],
    *,
    seeds: Sequence[int],
    folds: int | None = None,
    out: Path,
    requested: Plain,
    what: str = "comparison",
) -> Sweep:
    """Plan a sweep of the given variants of its recipes, as `plan_sweep` does for all combinations of values.

    Args:
        names: Recipes, and folders of finished runs or models.
        points: Variants of each recipe.
        seeds: Seeds of each variant.
        folds: Number of folds of cross-validation; None for the validation part of the recipes.
        out: Folder of the sweep.
        requested: Requested settings, for `settings.json`.
        what: Name of the sweep in messages.

    Raises:
        UserError: If a name, key or value is invalid, as in `plan_sweep`.
    """
    parsed_recipes = {
        name: [load_recipe(name, point.changes) for point in points] for name in names if not is_run(name)
    }
    short_names = dict(zip(names, _short_names(names), strict=True)) if len(names) > 1 else {}
    runs = list[SweepRun]()
    for name in names:
        if name not in parsed_recipes:
            runs.append(_open_finished(Path(name), short_names.get(name, Path(name).name)))
            continue
        for point, recipe in zip(points, parsed_recipes[name], strict=True):
            settings = {**({"recipe": short_names[name]} if len(parsed_recipes) > 1 else {}), **point.settings}
            variant = ", ".join(filter(None, (short_names.get(name, ""), point.label))) or Path(name).stem
            runs += _runs_of_variant(SweepRun(variant=variant, folder=out, settings=settings), recipe, seeds, folds)
    runs = _assign_folders(runs, out)
    _check_distinct(runs)
    check_out(out, requested, what=what)
    for recipe in (run.recipe for run in runs if run.recipe):
        check_sources(recipe.data)
        check_loggers(recipe.logging)
    descriptions = [
        describe_other_data(read_settings(name), point.changes) for name in parsed_recipes for point in points
    ]
    if folds is not None:
        descriptions += [describe_division(recipe) for parsed in parsed_recipes.values() for recipe in parsed]
    notes = tuple(dict.fromkeys(filter(None, descriptions)))
    return Sweep(out=out, runs=tuple(runs), requested=requested, folds=folds, notes=notes)


def _check_scope(
    names: Sequence[str],
    recipes: Sequence[str],
    varied_keys: Sequence[VariedKey],
    changes: Mapping[str, Any],
    seeds: Sequence[int] | None,
    folds: int | None,
) -> None:
    """Check that the arguments of `plan_sweep` apply to its recipes and do not conflict.

    Raises:
        UserError: If they apply to no recipe, the seed is set twice, or folds cannot replace the validation part.
    """
    if not recipes and (varied_keys or changes or seeds):
        flags = "--vary applies" if varied_keys else "--set and --data apply" if changes else "--seeds applies"
        raise UserError(f"{flags} only to recipes, but no recipe is given, only {' and '.join(names)}; add one")
    training = changes.get("training")
    if seeds is not None and isinstance(training, Mapping) and "seed" in training:
        raise UserError("training.seed is both in --set and in --seeds; remove it from --set")
    if folds is not None:
        check_folds(folds, [choice.key for choice in varied_keys], [name for name in names if name not in recipes])


def _runs_of_variant(variant: SweepRun, recipe: Recipe, seeds: Sequence[int], folds: int | None) -> Iterator[SweepRun]:
    """Yield the runs of a variant, one per seed and fold."""
    if folds is not None:
        check_division(variant.variant, recipe)
    for seed in seeds:
        seeded_recipe = replace(recipe, training=replace(recipe.training, seed=seed))
        for fold in make_folds(folds, seed):
            number = None if fold is None else fold.fold
            yield replace(variant, recipe=set_fold(seeded_recipe, fold), seed=seed, fold=number)


def check_sweep(sweep: Sweep, *, quiet: bool = False) -> None:
    """Check every variant before the first is trained, and report the sweep's notes on stderr.

    The data of each variant is read, and its model is built without weights. Finished variants are skipped.

    Args:
        sweep: Planned sweep.
        quiet: If True, report nothing on stderr.

    Raises:
        UserError: If a variant cannot be trained, or a finished run cannot be scored.
    """
    from tercet.checkpoint import load_model
    from tercet.evaluate.held_out import check_scorable
    from tercet.inspect.model_table import model_table
    from tercet.training.tasks.open_task import task_of

    checked_data = set[tuple[str, int | None, int | None]]()  # the data of a variant depends on the seed only in folds
    for run in sweep.runs:
        if run.recipe is None:
            check_scorable(load_model(run.folder))
            continue
        check_recipe(run.folder, run.recipe, read_record(run.folder))
        data_key = (run.variant, None if run.fold is None else run.seed, run.fold)
        if data_key in checked_data or is_finished(run.folder):
            continue
        checked_data.add(data_key)
        pretrained = None if run.recipe.pretrained is None else load_model(run.recipe.pretrained)
        try:
            task: Task = task_of(run.recipe, pretrained=pretrained, progress=not quiet)
            model_table(task.recipe.model)
        except (UserError, ValueError) as error:
            raise UserError(f"{run.variant if run.fold is None else run.name}: {error}") from None
    for note in () if quiet else sweep.notes:
        print_note(note)


def train_sweep(sweep: Sweep, *, quiet: bool = False) -> Iterator[tuple[SweepRun, RunDiverged | None]]:
    """Yield each run of a sweep after training it, unless it is finished already.

    Yields:
        Run, and the error if training diverged, else None.

    Raises:
        UserError: If a run cannot be resumed.
        Interrupted: If a signal stopped training, after the run was saved.
    """
    recipes = [run.recipe for run in sweep.runs if run.recipe is not None]
    arithmetic = settle_arithmetic(sweep.out, sweep.requested, recipes)
    for number, run in enumerate(sweep.runs, start=1):
        heading = f"{number} of {len(sweep.runs)}: {run.name}"
        yield run, train_variant(run, heading, arithmetic, quiet=quiet)


def train_variant(
    run: SweepRun, heading: str, arithmetic: dict[str, Any], *, quiet: bool = False, pause_at: int | None = None
) -> RunDiverged | None:
    """Train a run of a sweep, unless it is finished already; return the error if training diverged, else None.

    Args:
        run: Run; a run without a recipe is finished.
        heading: Line that is reported on stderr.
        arithmetic: `precision` and `matmul` of all runs of the sweep whose precision is `auto`.
        quiet: If True, report nothing on stderr.
        pause_at: Number of steps after which the run pauses; None for no pause.

    Raises:
        UserError: If the run cannot be resumed.
        Interrupted: If a signal stopped training, after the run was saved.
    """
    import torch

    if run.recipe is None:
        return None
    is_done = is_finished(run.folder)
    if not quiet:
        print_note(f"{heading}{', trained already' if is_done else ''}")
    if is_done:
        return None
    if run.recipe.training.compile != "never":
        torch.compiler.reset()  # graphs of earlier variants count towards the limit of the compiler
    try:
        train(
            run.recipe, run.folder, quiet=quiet, arithmetic=_arithmetic_for(run.recipe, arithmetic), pause_at=pause_at
        )
    except RunDiverged as error:
        if not quiet:
            print_note(f"{run.name}: {error}")
        return error
    return None


def default_comparison_folder(names: Sequence[str]) -> Path:
    """Return the default folder of a comparison: `compared/` and the joined names of recipes and runs."""
    words = (Path(name).stem if name.endswith((".yaml", ".yml")) else Path(name).name for name in names)
    return Path("compared", folder_names(["-".join(words)])[0])


def is_run(name: str) -> bool:
    """Return whether a name is the folder of a run or model instead of a recipe.

    Raises:
        UserError: If it is neither.
    """
    if name in recipe_names() or name.endswith((".yaml", ".yml")):
        return False
    if Path(name).exists():
        return True
    raise UserError(f"no such recipe or run: {name!r}{suggest(name, recipe_names())}")


def is_finished(folder: Path) -> bool:
    """Return whether the run in a folder is finished.

    Raises:
        UserError: If the record of the run is damaged.
    """
    record = read_record(folder)
    return record is not None and record.finished


def _open_finished(folder: Path, name: str) -> SweepRun:
    has_run = any((folder / name).exists() for name in (RECORD, RECIPE))  # a model folder has neither
    if has_run and not is_finished(folder):
        raise UserError(f"{folder} is not finished, according to its {RECORD}; finish it first, or omit it")
    return SweepRun(variant=name, folder=folder, settings={"recipe": name})


def _short_names(names: Sequence[str]) -> list[str]:
    """Return a short name for each recipe or run: the last part of its path.

    Names of recipes have no suffix. If two short names would be equal, the full names are used.
    """
    ends = [Path(name).resolve().name if is_run(name) else Path(name).stem for name in names]
    return [end if ends.count(end) == 1 else name for name, end in zip(names, ends, strict=True)]


def _assign_folders(runs: Sequence[SweepRun], out: Path) -> list[SweepRun]:
    """Return the runs with a separate folder in `out` for each run that will be trained."""
    places = iter(folder_names([run.name.replace(", ", ",") for run in runs if run.recipe]))
    return [replace(run, folder=out / next(places)) if run.recipe else run for run in runs]


def _check_distinct(runs: Sequence[SweepRun]) -> None:
    """Check that there are at least two runs, and that no two variants or runs are the same.

    Raises:
        UserError: If there are fewer than two runs, or two are the same.
    """
    variants = dict[str, str]()
    for run in runs:
        if run.recipe is None:
            identity = str(run.folder.resolve())
        else:
            recipe = replace(run.recipe, training=replace(run.recipe.training, seed=0))
            recipe = recipe if run.fold is None else set_fold(recipe, Fold())
            identity = json.dumps(to_plain(recipe), sort_keys=True)
        first_variant = variants.setdefault(identity, run.variant)
        if first_variant != run.variant:
            raise UserError(
                f"{first_variant} and {run.variant} are the same {'run' if run.recipe is None else 'recipe'}; "
                "remove one"
            )
    names = [run.name for run in runs]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{duplicates[0]} is given twice; remove one (to measure the variance, pass --seeds 1,2,3)")
    if len(runs) < 2:
        raise UserError(
            f"{runs[0].variant} has nothing to be compared with; add another recipe or run, --vary, --seeds or --folds"
            if runs
            else "nothing to compare; pass recipes or finished runs"
        )


def _arithmetic_for(recipe: Recipe, arithmetic: dict[str, Any]) -> dict[str, Any] | None:
    return arithmetic if recipe.training.precision == "auto" else None

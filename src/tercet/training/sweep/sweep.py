"""Several trainings on the same data: the variants of recipes, all looked at before the first of them is trained.

Each is an ordinary run in a folder of its own; a sweep that was killed goes on with the run that it was at.

    settings.json     what was asked for, and what `auto` came to: the same arithmetic for all
    placement=pre,seed=1/  ...     the runs
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.checkpoint.run_record import RECIPE, RECORD, read_record
from tercet.config import Plain, UserError, find_differences, suggest, to_plain
from tercet.data.corpora.find_sources import check_sources
from tercet.messages import print_note
from tercet.storage import read_sealed_json, write_sealed_json
from tercet.training.loop.loggers import check_loggers
from tercet.training.recipe.files import read_settings, recipe_names
from tercet.training.recipe.other_data import describe_other_data
from tercet.training.recipe.recipe import Recipe, load_recipe
from tercet.training.run.fit import RunDiverged
from tercet.training.run.train import train
from tercet.training.run_folder.folder import check_recipe
from tercet.training.sweep.grid import VariedKey, folder_names, grid_points

if TYPE_CHECKING:
    from tercet.training.tasks.task import Task

SETTINGS = "settings.json"


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One training of a sweep, or a run that was there already.

    Attributes:
        variant: its name, without the seed.
        settings: what varies, and this variant's choice.
        recipe: None for a run that was there already.
        seed: None for a run that was there already.
    """

    variant: str
    folder: Path
    settings: dict[str, str]
    recipe: Recipe | None = None
    seed: int | None = None

    @property
    def name(self) -> str:
        return self.variant if self.seed is None else f"{self.variant}, seed={self.seed}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Attributes:
    runs: the seeds of a variant next to each other.
    requested: what was asked for, for `settings.json`.
    notes: What other data than a recipe's own replaces in its settings.
    """

    out: Path
    runs: tuple[SweepRun, ...]
    requested: Plain
    notes: tuple[str, ...] = ()


def plan_sweep(
    names: Sequence[str],
    *,
    varied_keys: Sequence[VariedKey] = (),
    seeds: Sequence[int] | None = None,
    changes: Mapping[str, Any] | None = None,
    out: Path,
) -> Sweep:
    """The runs of a sweep; nothing is read but recipes, and nothing written. It needs no tensor.

    Args:
        names: recipes, and folders of finished runs.
        seeds: by default one, that of `changes` or of the first recipe.
        changes: for all recipes, as nested mappings.

    Raises:
        UserError: where a name is neither, a key or value does not fit, data is not there, two variants are one, there
            is but one of them, or `out` holds something else.
    """
    changes = changes or {}
    recipes = [name for name in names if not is_run(name)]
    if not recipes and (varied_keys or changes or seeds):
        flag = "--vary" if varied_keys else "--set" if changes else "--seeds"
        raise UserError(f"{flag} is for recipes, and {' and '.join(names)} are trained already; name a recipe as well")
    training = changes.get("training")
    if seeds is not None and isinstance(training, Mapping) and "seed" in training:
        raise UserError("training.seed is both in --set and in --seeds; leave it out of --set")
    points = grid_points(varied_keys, fixed_changes=changes)
    parsed_recipes = {name: [load_recipe(name, point.changes) for point in points] for name in recipes}
    if recipes and seeds is None:
        seeds = (parsed_recipes[recipes[0]][0].training.seed,)
    short_names = dict(zip(names, _short_names(names), strict=True)) if len(names) > 1 else {}
    runs = list[SweepRun]()
    for name in names:
        if name not in parsed_recipes:
            runs.append(_open_finished(Path(name), short_names.get(name, Path(name).name)))
            continue
        for point, recipe in zip(points, parsed_recipes[name], strict=True):
            settings = {**({"recipe": short_names[name]} if len(recipes) > 1 else {}), **point.settings}
            words = [
                *([short_names[name]] if name in short_names else []),
                *(f"{k}={v}" for k, v in point.settings.items()),
            ]
            variant = ", ".join(words) or Path(name).stem
            for seed in seeds or ():
                seeded_recipe = replace(recipe, training=replace(recipe.training, seed=seed))
                runs.append(SweepRun(variant=variant, folder=out, settings=settings, recipe=seeded_recipe, seed=seed))
    runs = _assign_folders(runs, out)
    _check_distinct(runs)
    requested = {
        "recipes and runs": list(names),
        "vary": {choice.key: list(choice.labels) for choice in varied_keys},
        "set": dict(changes),
        "seeds": list(seeds or ()),
    }
    _check_out(out, requested)
    for recipe in (run.recipe for run in runs if run.recipe):
        check_sources(recipe.data)
        check_loggers(recipe.logging)
    descriptions = [describe_other_data(read_settings(name), point.changes) for name in recipes for point in points]
    return Sweep(out=out, runs=tuple(runs), requested=requested, notes=tuple(dict.fromkeys(filter(None, descriptions))))


def check_sweep(sweep: Sweep, *, quiet: bool = False) -> None:
    """Build every variant, with its data and without its weights, before the first is trained.

    Raises:
        UserError: with the variant's name, for whatever would stop it later.
    """
    from tercet.checkpoint import load_model
    from tercet.evaluate.held_out import check_scorable
    from tercet.inspect.model_table import model_table
    from tercet.training.tasks.open_task import task_of

    checked_variants = set[str]()
    for run in sweep.runs:
        if run.recipe is None:
            check_scorable(load_model(run.folder))
            continue
        check_recipe(run.folder, run.recipe, read_record(run.folder))
        if run.variant in checked_variants or is_finished(run.folder):
            continue
        checked_variants.add(run.variant)
        pretrained = None if run.recipe.pretrained is None else load_model(run.recipe.pretrained)
        try:
            task: Task = task_of(run.recipe, pretrained=pretrained, progress=not quiet)
            model_table(task.recipe.model)
        except (UserError, ValueError) as error:
            raise UserError(f"{run.variant}: {error}") from None
    for note in () if quiet else sweep.notes:
        print_note(note)


def train_sweep(sweep: Sweep, *, quiet: bool = False) -> Iterator[tuple[SweepRun, RunDiverged | None]]:
    """Train what is not trained yet, and yield each run when it is done, with the reason where it diverged.

    Raises:
        UserError: where a run cannot go on.
        Interrupted: after a signal; what is done so far is saved.
    """
    import torch

    arithmetic = _settle_arithmetic(sweep)
    for number, run in enumerate(sweep.runs, start=1):
        divergence = None
        if run.recipe is not None:
            is_done = is_finished(run.folder)
            if not quiet:
                words = f"{number} of {len(sweep.runs)}: {run.name}{', trained already' if is_done else ''}"
                print_note(words)
            try:
                if not is_done:
                    if run.recipe.training.compile != "never":
                        torch.compiler.reset()  # graphs of earlier variants count against the most that are kept
                    train(run.recipe, run.folder, quiet=quiet, arithmetic=_arithmetic_for(run.recipe, arithmetic))
            except RunDiverged as error:
                divergence = error
                if not quiet:
                    print_note(f"{run.name}: {error}")
        yield run, divergence


def default_comparison_folder(names: Sequence[str]) -> Path:
    """Where a comparison goes that was given no folder: `compared/` and what is compared."""
    words = (Path(name).stem if name.endswith((".yaml", ".yml")) else Path(name).name for name in names)
    return Path("compared", folder_names(["-".join(words)])[0])


def is_run(name: str) -> bool:
    """Whether a name means a run's or a model's folder, and no recipe.

    Raises:
        UserError: where it is neither.
    """
    if name in recipe_names() or name.endswith((".yaml", ".yml")):
        return False
    if Path(name).exists():
        return True
    raise UserError(f"there is no recipe and no run {name!r}{suggest(name, recipe_names())}")


def is_finished(folder: Path) -> bool:
    """Whether a run's folder says that its training is at its end.

    Raises:
        UserError: where what it says is damaged.
    """
    record = read_record(folder)
    return record is not None and record.finished


def _open_finished(folder: Path, name: str) -> SweepRun:
    has_run = any((folder / name).exists() for name in (RECORD, RECIPE))  # a model without them is as it is
    if has_run and not is_finished(folder):
        raise UserError(f"{folder} is not finished, says its {RECORD}; train it to its end first, or leave it out")
    return SweepRun(variant=name, folder=folder, settings={"recipe": name})


def _short_names(names: Sequence[str]) -> list[str]:
    """The last part of each, or all of it where two end alike."""
    ends = [Path(name).resolve().name if is_run(name) else Path(name).stem for name in names]
    return [end if ends.count(end) == 1 else name for name, end in zip(names, ends, strict=True)]


def _assign_folders(runs: Sequence[SweepRun], out: Path) -> list[SweepRun]:
    """The runs that are to be trained, each with a folder of its own in `out`."""
    places = iter(folder_names([run.name.replace(", ", ",") for run in runs if run.recipe]))
    return [replace(run, folder=out / next(places)) if run.recipe else run for run in runs]


def _check_distinct(runs: Sequence[SweepRun]) -> None:
    """Two variants that are one would be shown as two."""
    variants = dict[str, str]()
    for run in runs:
        if run.recipe is None:
            identity = str(run.folder.resolve())
        else:
            recipe = replace(run.recipe, training=replace(run.recipe.training, seed=0))
            identity = json.dumps(to_plain(recipe), sort_keys=True)
        first_variant = variants.setdefault(identity, run.variant)
        if first_variant != run.variant:
            raise UserError(
                f"{first_variant} and {run.variant} are the same {'run' if run.recipe is None else 'recipe'}; "
                "leave one out"
            )
    names = [run.name for run in runs]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{duplicates[0]} is given twice; leave one out (how much is chance: --seeds 1,2,3)")
    if len(runs) < 2:
        raise UserError(
            f"{runs[0].variant} alone has nothing to compare with; give another recipe or run, --vary or --seeds"
            if runs
            else "there is nothing to compare; name recipes or finished runs"
        )


def _check_out(out: Path, requested: Plain) -> None:
    """A folder holds one comparison."""
    if out.is_file():
        raise UserError(f"--out {out} is a file; give a folder")
    if not (out / SETTINGS).exists():
        if out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
            raise UserError(f"{out} is not empty and holds no comparison; give another --out")
        return
    previous = _read_settings(out)
    if differences := find_differences(previous["asked"], json.loads(json.dumps(requested))):
        raise UserError(f"{out} holds a comparison with other settings ({'; '.join(differences)}); give another --out")


def _settle_arithmetic(sweep: Sweep) -> dict[str, Any]:
    """Write down what was asked for; and, for recipes that leave it open, in what numbers all of them are trained:
    measured anew for each, two could differ by more than their variants do."""
    from tercet.training.compute.auto_arithmetic import choose_arithmetic

    path = sweep.out / SETTINGS
    if path.exists():
        return _read_settings(sweep.out)["arithmetic"]
    open_recipes = [run.recipe for run in sweep.runs if run.recipe and run.recipe.training.precision == "auto"]
    arithmetic = choose_arithmetic(open_recipes[0].training) if open_recipes else {}
    try:
        sweep.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {sweep.out}: {error.strerror}; give another --out") from None
    write_sealed_json(path, {"asked": sweep.requested, "arithmetic": arithmetic})
    return arithmetic


def _read_settings(out: Path) -> dict[str, Any]:
    """What was asked for, and in what numbers.

    Raises:
        UserError: where the file is damaged, or none of ours.
    """
    settings = read_sealed_json(out / SETTINGS, since="checksum")
    if any(not isinstance(settings.get(key), dict) for key in ("asked", "arithmetic")):
        raise UserError(f"{out / SETTINGS} is not what a comparison writes; give another --out")
    return settings


def _arithmetic_for(recipe: Recipe, arithmetic: dict[str, Any]) -> dict[str, Any] | None:
    return arithmetic if recipe.training.precision == "auto" else None

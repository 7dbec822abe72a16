"""`train` and `load`: from a recipe, or a folder, to a `Run`; `plan`: what a recipe needs, before."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tercet.checkpoint import load_model
from tercet.config import Plain, UserError, merge, nest
from tercet.messages import show
from tercet.run import Run as Run

if TYPE_CHECKING:
    from tercet.training.planning import RunPlan
    from tercet.training.run_folder.choices import Start


def train(
    recipe: str | Path,
    *,
    data: str | Path | None = None,
    source: str | Path | None = None,
    target: str | Path | None = None,
    validation_source: str | Path | None = None,
    validation_target: str | Path | None = None,
    pretrained: str | Path | None = None,
    out: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    start: "Start | None" = None,
    page: bool = False,
    report: bool = False,
    quiet: bool = False,
) -> Run:
    """Train as the recipe says, as `tercet train` does.

    Args:
        recipe: a packaged recipe's name, a YAML file's path, the folder of a run that is to go on, or a file or folder
            of data, which a packaged recipe is chosen for.
        data: a file, folder or named dataset in place of the recipe's, where it trains a language model.
        source, target: the same where it trains a translator: two files, line by line; or, without target, one
            .tsv, .csv or .jsonl file of pairs or a named dataset.
        validation_source, validation_target: pairs to validate on, in files of their own.
        pretrained: the folder of a model to go on from: its sizes, tokenizer and weights.
        out: the run's folder, runs/<recipe> by default; a run that is there already is resumed.
        changes: Keys of the recipe with other values, such as {"training.max_steps": 500}.
        start: `tercet.Resume(length, exact)` by default, which begins a run or goes on where it stopped, with
            `tercet.More(steps)` or `tercet.Until(steps)` as another length; `tercet.Restart()`, which deletes the run
            that is there; or `tercet.FromWeights(length)`, if every checkpoint of the run is lost.
        page: show it on a page meanwhile, whose address is printed on stderr; see `watch`.
        report: write its report, report.html in its folder, when it ends.

    Raises:
        UserError: where recipe, data or settings do not fit, or another process trains there.
    """
    from tercet.dashboard import page_beside
    from tercet.training.request import RunRequest, resolve
    from tercet.training.run.open import is_first
    from tercet.training.run.train import train_resolved

    paths = _to_text(
        data=data, source=source, target=target, validation_source=validation_source,
        validation_target=validation_target, pretrained=pretrained,
    )  # fmt: skip
    folder = None if out is None else Path(out)
    resolved = resolve(RunRequest(recipe=str(recipe), changes=_nest(changes), out=folder, quiet=quiet, **paths))
    with page_beside(resolved.folder) if page else nullcontext():
        trained_model = train_resolved(resolved, start, quiet=quiet)
    run = load(trained_model)
    if report and is_first(resolved.recipe):
        run.report()
    return run


def plan(
    recipe: str | Path,
    *,
    gpus: str | None = None,
    mfu: float | None = None,
    measured: str | Path | None = None,
    here: bool = False,
    price: float | None = None,
    data: str | Path | None = None,
    source: str | Path | None = None,
    target: str | Path | None = None,
    validation_source: str | Path | None = None,
    validation_target: str | Path | None = None,
    pretrained: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
) -> "RunPlan":
    """What a run will need, before anything is trained, as `tercet train --plan` says it.

    Args:
        recipe, data, source, target, validation_source, validation_target, pretrained, changes: as in `train`.
        gpus: what it is to run on, such as "8xH100", "2x8xH100" for two nodes, or "4x48GiB@150TFLOPS".
        mfu: assume that so large a share of a GPU's peak is reached.
        measured: take the speed of the run in this folder.
        here: take the speed of this machine, which some steps of the recipe are worked out for.
        price: of a GPU for an hour.

    Raises:
        UserError: where there is no such recipe or GPU, or they do not fit together.
    """
    from tercet.training.planning.plan_recipe import plan_recipe
    from tercet.training.request import RunRequest

    paths = _to_text(
        data=data, source=source, target=target, validation_source=validation_source,
        validation_target=validation_target, pretrained=pretrained,
    )  # fmt: skip
    return plan_recipe(
        RunRequest(recipe=str(recipe), changes=_nest(changes), **paths), gpus=gpus, mfu=mfu,
        measured=None if measured is None else str(measured), here=here, price=price,
    )  # fmt: skip


def _to_text(**files: str | Path | None) -> dict[str, Any]:
    return {name: str(path) for name, path in files.items() if path is not None}


def _nest(changes: object) -> Plain:
    """Return `{"training.max_steps": 500}` as a recipe has it. Callers from Python may give anything."""
    if changes is None:
        return {}
    if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
        raise UserError(f'changes={show(changes)} must be a mapping such as {{"training.max_steps": 500}}')
    nested: Plain = {}
    for path, value in cast("Mapping[str, Any]", changes).items():
        nested = merge(nested, nest(path, value))
    return nested


def load(path: str | Path) -> Run:
    """The model in a run's folder (the best one) or in a model's.

    Raises:
        UserError: where there is none, or its files are broken.
    """
    return Run(trained_model=load_model(path))

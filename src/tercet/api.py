"""Functions to train, load and plan: `train`, `load` and `plan`."""

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
    """Train a model from a recipe, as `tercet train` does.

    Args:
        recipe: Name of a packaged recipe, path of a YAML file, run folder to resume, or file or folder of data, for
            which a packaged recipe is chosen.
        data: File, folder or named dataset to use instead of that of the recipe, for everything except translation.
        source, target: The same for translation: two files, line by line; or, without target, one .tsv, .csv or .jsonl
            file of pairs or a named dataset.
        validation_source, validation_target: Files of sentence pairs for validation.
        pretrained: Folder of a model to start from: its sizes, tokenizer and weights.
        out: Run folder, runs/<recipe> by default. A run that exists there is resumed.
        changes: Keys of the recipe with other values, such as {"training.max_steps": 500}.
        start: How to start. `tercet.Resume(length, exact)` (the default) starts a run or resumes it, with
            `tercet.More(steps)` or `tercet.Until(steps)` as another length. `tercet.Restart()` deletes an existing run.
            `tercet.FromWeights(length)` resumes from weights if every checkpoint of the run is lost.
        page: If True, serve the dashboard during training and print its address to stderr; see `watch`.
        report: If True, write report.html to the run folder after training.
        quiet: If True, print no progress.

    Raises:
        UserError: If recipe, data and settings do not fit together, or another process trains in the folder.
    """
    from tercet.dashboard import background_dashboard
    from tercet.training.request import RunRequest, resolve
    from tercet.training.run.open import is_first
    from tercet.training.run.train import train_resolved

    paths = _to_text(
        data=data, source=source, target=target, validation_source=validation_source,
        validation_target=validation_target, pretrained=pretrained,
    )  # fmt: skip
    folder = None if out is None else Path(out)
    resolved = resolve(RunRequest(recipe=str(recipe), changes=_nest(changes), out=folder, quiet=quiet, **paths))
    with background_dashboard(resolved.folder) if page else nullcontext():
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
    """Return the resources that a run needs, as `tercet train --plan` prints them.

    Args:
        recipe, data, source, target, validation_source, validation_target, pretrained, changes: As in `train`.
        gpus: Devices of the run, such as "8xH100", "2x8xH100" for two nodes, or "4x48GiB@150TFLOPS".
        mfu: Assumed model FLOPs utilization, a fraction of the peak.
        measured: Run folder whose measured speed is used.
        here: If True, measure the speed of this machine with some steps of the recipe.
        price: Price of one GPU per hour.

    Raises:
        UserError: If the recipe or GPU is unknown, or they do not fit together.
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
    """Return `{"training.max_steps": 500}` as nested mappings; any other type is rejected."""
    if changes is None:
        return {}
    if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
        raise UserError(f'changes={show(changes)} must be a mapping such as {{"training.max_steps": 500}}')
    nested: Plain = {}
    for path, value in cast("Mapping[str, Any]", changes).items():
        nested = merge(nested, nest(path, value))
    return nested


def load(path: str | Path) -> Run:
    """Load the model of a run folder (the best one) or of a model folder.

    Raises:
        UserError: If there is none, or its files are damaged.
    """
    return Run(trained_model=load_model(path))

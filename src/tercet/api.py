"""Train a model (`train`), plan a training run (`plan`) and load a trained model (`load`)."""

import json
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tercet.checkpoint import load_model
from tercet.config import Plain, UserError, merge, nest, to_plain
from tercet.custom_code import allow_code as allow_packages
from tercet.messages import show
from tercet.run import Run as Run
from tercet.spec import Custom

if TYPE_CHECKING:
    from tercet.checkpoint.forecast import Forecast
    from tercet.data import CustomDataset
    from tercet.training.planning import RunPlan
    from tercet.training.request import RunRequest
    from tercet.training.run_folder.choices import Start


def train(
    recipe: str | Path,
    *,
    data: "str | Path | CustomDataset | None" = None,
    source: "str | Path | CustomDataset | None" = None,
    target: str | Path | None = None,
    validation_source: "str | Path | CustomDataset | None" = None,
    validation_target: str | Path | None = None,
    pretrained: str | Path | None = None,
    out: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    start: "Start | None" = None,
    hours: float | None = None,
    page: bool = False,
    report: bool = False,
    quiet: bool = False,
    allow_code: str | Iterable[str] = (),
) -> Run:
    """Train a model from a recipe, as `tercet train` does, and return the best model of the run.

    Args:
        recipe: Name of a packaged recipe, path of a YAML file, run folder to resume, or file or folder of data, for
            which a packaged recipe is chosen.
        data: File, folder, named dataset or dataset of your own to train on instead of the data of the recipe. For
            translation, pass `source` and `target` instead.
        source, target: Sentence pairs to train a translator on: two files, line by line; or, without `target`, one
            .tsv, .csv or .jsonl file of pairs, a named dataset, or a dataset of your own.
        validation_source, validation_target: Sentence pairs for validation: two files, line by line.
        pretrained: Folder of a run or model to start from. The new model gets its sizes, tokenizer and weights.
        out: Run folder, runs/<recipe> by default. If it contains a run, `start` determines what happens to it.
        changes: Keys of the recipe with other values, such as {"training.max_steps": 500}.
        start: Start point and length of the run. `tercet.Resume(length, exact)`, the default, starts a run or resumes
            the one in `out`; `length` may be `tercet.More(steps)` or `tercet.Until(steps)`. `tercet.Restart()` deletes
            an existing run and starts again. `tercet.FromWeights(length)` continues from the weights of the last saved
            model if every checkpoint of the run is lost.
        hours: Duration for which the size of the model and its settings are chosen by pilot runs, as with `--hours`;
            None for the settings of the recipe. `forecast` returns the expected loss. `start` may then only be
            `Restart`, and `page` has no effect.
        page: If True, serve the dashboard during training and print its address to stderr; see `tercet.watch`.
        report: If True, write report.html to the run folder after training.
        quiet: If True, print no progress to stderr.
        allow_code: Packages that this process may import for custom parts of the recipe or model, such as "my_package".

    Raises:
        UserError: If the recipe or data does not exist, settings are invalid or do not fit the data, or another process
            trains in the run folder.
    """
    allow_packages(allow_code)
    from tercet.training.request import RunRequest

    paths = _to_text(data=data, source=source, target=target, validation_source=validation_source,
                     validation_target=validation_target, pretrained=pretrained)  # fmt: skip
    folder = None if out is None else Path(out)
    request = RunRequest(recipe=str(recipe), changes=_nest(changes), out=folder, quiet=quiet, **paths)
    run, writes_report = _train(request, start, hours=hours, page=page)
    if report and writes_report:
        run.report()
    return run


def _train(request: "RunRequest", start: "Start | None", *, hours: float | None, page: bool) -> tuple[Run, bool]:
    """Train a requested run; return its best model, and whether this process writes the files of the run."""
    from tercet.dashboard import background_dashboard
    from tercet.training.request import resolve
    from tercet.training.run.open import is_first
    from tercet.training.run.train import train_resolved
    from tercet.training.run_folder.choices import Restart

    if hours is not None:
        from tercet.training.budget.train_hours import train_hours

        return load(train_hours(request, hours, restart=isinstance(start, Restart))), True
    resolved = resolve(request)
    with background_dashboard(resolved.folder) if page else nullcontext():
        trained_model = train_resolved(resolved, start, quiet=request.quiet)
    return load(trained_model), is_first(resolved.recipe)


def forecast(
    recipe: str | Path,
    *,
    hours: float,
    data: "str | Path | CustomDataset | None" = None,
    out: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    quiet: bool = False,
    gpus: str | None = None,
    mfu: float | None = None,
    measured: str | Path | None = None,
    allow_code: str | Iterable[str] = (),
) -> "Forecast":
    """Forecast a run within some hours by pilot runs, as `tercet train --hours H --plan` does.

    The forecast is registered in the run folder. `train` with the same hours trains the run. With `gpus`, the forecast
    is for another machine, and it is not registered.

    Args:
        recipe, data, out, changes, quiet, allow_code: As in `train`.
        hours: Hours of pilot runs and run together, or of the run on the other machine.
        gpus: GPUs of the other machine, such as "1xH100" or "4x48GiB@150TFLOPS"; None for this machine.
        mfu: Assumed model FLOPs utilization of the GPUs, from 0 to 1.
        measured: Folder of a run on such a GPU, whose speed is assumed instead.

    Raises:
        UserError: If the recipe or data does not exist, the recipe has no `model.size`, or the folder contains another
            run or a forecast for other hours.
    """
    allow_packages(allow_code)
    from tercet.training.budget.plan_hours import plan_hours
    from tercet.training.request import RunRequest

    folder = None if out is None else Path(out)
    request = RunRequest(
        recipe=str(recipe), changes=_nest(changes), out=folder, quiet=quiet, **_to_text(data=data)
    )  # fmt: skip
    return plan_hours(request, hours, gpus=gpus, mfu=mfu, measured=None if measured is None else str(measured))


def plan(
    recipe: str | Path,
    *,
    gpus: str | None = None,
    mfu: float | None = None,
    measured: str | Path | None = None,
    here: bool = False,
    price: float | None = None,
    data: "str | Path | CustomDataset | None" = None,
    source: "str | Path | CustomDataset | None" = None,
    target: str | Path | None = None,
    validation_source: "str | Path | CustomDataset | None" = None,
    validation_target: str | Path | None = None,
    pretrained: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    allow_code: str | Iterable[str] = (),
) -> "RunPlan":
    """Return the resources that a run needs, as `tercet train --plan` prints them, without training.

    The time is estimated only if one of `mfu`, `measured` and `here` defines the speed. Only one of them can be passed.

    Args:
        recipe, data, source, target, validation_source, validation_target, pretrained, changes, allow_code: As in
            `train`.
        gpus: Devices of the run, such as "8xH100", "2x8xH100" for two nodes, or "4x48GiB@150TFLOPS"; by default those
            of the recipe.
        mfu: Assumed model FLOPs utilization, a fraction of the peak such as 0.4. Requires `gpus`.
        measured: Run folder with the measured speed to assume.
        here: If True, measure the speed of this machine with some steps of the recipe.
        price: Price of one GPU per hour, in any currency, to compute the cost. Requires a speed.

    Raises:
        UserError: If the recipe or GPU is unknown, a number is out of range, or arguments do not fit together.
    """
    allow_packages(allow_code)
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


def _to_text(**files: "str | Path | CustomDataset | None") -> dict[str, Any]:
    """Return arguments as text; a dataset of another package is written as its recipe key, in JSON."""
    return {
        name: json.dumps(to_plain(path)) if isinstance(path, Custom) else str(path)
        for name, path in files.items()
        if path is not None
    }


def _nest(changes: object) -> Plain:
    """Return changes such as {"training.max_steps": 500} as nested mappings; None means no changes.

    Raises:
        UserError: If `changes` is not a mapping with text keys, or a key is not a recipe key.
    """
    if changes is None:
        return {}
    if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
        raise UserError(f'changes={show(changes)} must be a mapping such as {{"training.max_steps": 500}}')
    nested: Plain = {}
    for path, value in cast("Mapping[str, Any]", changes).items():
        nested = merge(nested, nest(path, value))
    return nested


def load(path: str | Path, *, allow_code: str | Iterable[str] = ()) -> Run:
    """Load a trained model.

    Args:
        path: Run folder, model folder (of Tercet or in a third-party format), or .gguf file. From a run folder, the
            best model is loaded, or the last one if there is no best.
        allow_code: Packages that this process may import for custom parts of the model, such as "my_package".

    Raises:
        UserError: If there is no model at the path, or its files are damaged.
    """
    allow_packages(allow_code)
    return Run(trained_model=load_model(path))

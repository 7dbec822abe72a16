"""The tracker of a run: a program that also receives its metrics, and a check of its requirements before anything else.

    tensorboard   event files in the run folder
    wandb         a run of Weights & Biases in the run folder; uploaded if `logging.online` is true
    trackio       a run in Trackio's own folder
    mlflow        a run in the run folder's `mlflow/mlflow.db`, or where the variable MLFLOW_TRACKING_URI points

A run has the name of its folder. A resumed run continues the same run of the tracker, and sends no step twice. The
programs' own reports about their use are turned off.
"""

import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.config import Plain, UserError, to_plain
from tercet.messages import shorten
from tercet.training.recipe.recipe import Recipe
from tercet.training.recipe.specs import LoggingSpec

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger

LEAVE_OUT = "--set logging.tracker=none"
TITLES = {"tensorboard": "TensorBoard", "wandb": "W&B", "trackio": "Trackio", "mlflow": "MLflow"}
# Variables that turn off reports to the programs' makers, read when the packages are imported.
PRIVATE = {"wandb": ("WANDB_ERROR_REPORTING", "false"), "mlflow": ("MLFLOW_DISABLE_TELEMETRY", "true")}


def check_loggers(spec: LoggingSpec) -> None:
    """Check that the package of the tracker is installed, and that W&B accepts the key.

    Raises:
        UserError: If the package is not installed, `online` is set for a tracker without uploads, or W&B is used online
            and its key is missing or rejected.
    """
    if spec.online and spec.tracker != "wandb":
        raise UserError("logging.online is only for the tracker wandb; set logging.tracker=wandb, or leave it out")
    if spec.tracker == "none":
        return
    if find_spec(spec.tracker) is None:
        raise _missing_error(spec.tracker, spec.tracker)
    if spec.online:
        wandb = _import_extra("wandb")
        with _report_failure("wandb"):
            has_key = wandb.login(prompt=False)
        if not has_key:
            raise UserError(
                "logging.online needs a key: run `wandb login`, set WANDB_API_KEY, or pass --set logging.online=false "
                "and upload the run later with `wandb sync`"
            )


def make_loggers(recipe: Recipe, out: Path, *, start: int) -> "list[Logger]":
    """Return the logger of the recipe's tracker, ready to write; an empty list without one, and on ranks above 0.

    If it fails later, it is disabled and training continues.

    Args:
        recipe: Recipe of the run.
        out: Run folder. Its name is the name of the run in the tracker.
        start: Number of steps that are already trained; 0 begins a new run in the tracker.

    Raises:
        UserError: If the tracker cannot start.
    """
    name = recipe.logging.tracker
    if name == "none":
        return []
    from lightning_fabric.utilities.rank_zero import rank_zero_only

    if getattr(rank_zero_only, "rank", 0):
        return []
    _import_extra(name)
    from tercet.checkpoint.card import remove_folders  # imports torch
    from tercet.training.loop.tracker import Tracker

    settings = remove_folders(to_plain(recipe))
    with _report_failure(name):
        logger, last = MAKERS[name](recipe.logging, settings, out, start)
        _ = logger.experiment  # connects now, so that errors do not occur at the first metrics
    return [Tracker(logger, TITLES[name], after=last)]


def _tensorboard(spec: LoggingSpec, settings: Plain, out: Path, start: int) -> tuple[Any, int]:
    from pytorch_lightning.loggers import TensorBoardLogger

    # TensorBoard hides the events of earlier files from this step on.
    logger = TensorBoardLogger(
        out, name=None, version="tensorboard", default_hp_metric=False, purge_step=start + 1 if start else None
    )
    if not start:
        logger.log_hyperparams(settings)
    return logger, start


def _wandb(spec: LoggingSpec, settings: Plain, out: Path, start: int) -> tuple[Any, int]:
    wandb = import_module("wandb")
    from pytorch_lightning.loggers import WandbLogger

    record = out / "wandb" / "last-step"

    class RunLogger(WandbLogger):
        """Logger that records its last step, since an offline run cannot be asked, and ends its run.

        Otherwise the next run of this process would continue it.
        """

        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            super().log_metrics(metrics, step)
            record.write_text(str(step), encoding="ascii")

        def finalize(self, status: str) -> None:
            super().finalize(status)
            self.experiment.finish()

    quiet = wandb.Settings(x_disable_stats=True, silent=True, save_code=False, disable_git=True)
    logger = RunLogger(
        name=out.name, id=out.name, save_dir=out, project=spec.project, offline=not spec.online, config=settings,
        resume="allow", settings=quiet,
    )  # fmt: skip
    last = record.read_text(encoding="ascii") if start and record.is_file() else ""
    return logger, int(last) if last.isdecimal() else start


def _mlflow(spec: LoggingSpec, settings: Plain, out: Path, start: int) -> tuple[Any, int]:
    from pytorch_lightning.loggers import MLFlowLogger

    remote = os.environ.get("MLFLOW_TRACKING_URI")
    folder = out.absolute() / "mlflow"
    if not remote:
        folder.mkdir(parents=True, exist_ok=True)
    logger = MLFlowLogger(
        experiment_name=spec.project, run_name=out.name, tracking_uri=remote or f"sqlite:///{folder / 'mlflow.db'}",
        artifact_location=None if remote else (folder / "artifacts").as_uri(),
    )  # fmt: skip
    client = logger._mlflow_client  # pyright: ignore[reportPrivateUsage] (`experiment` would create a run)
    experiment = client.get_experiment_by_name(spec.project) if start else None
    if experiment is not None:
        query = f"tags.`mlflow.runName` = '{out.name}'"
        for run in client.search_runs([experiment.experiment_id], query, max_results=1):  # the newest one first
            logger._run_id = run.info.run_id  # pyright: ignore[reportPrivateUsage]
            points = [point for key in run.data.metrics for point in client.get_metric_history(run.info.run_id, key)]
            client.update_run(run.info.run_id, status="RUNNING")
            return logger, max((point.step for point in points), default=0)
    logger.log_hyperparams(settings)
    return logger, 0


def _trackio(spec: LoggingSpec, settings: Plain, out: Path, start: int) -> tuple[Any, int]:
    from tercet.training.loop.trackio_logger import TrackioLogger

    logger = TrackioLogger(spec.project, out.name, settings, resume=bool(start))
    return logger, logger.last_step


MAKERS: Mapping[str, Callable[[LoggingSpec, Plain, Path, int], tuple[Any, int]]] = {
    "tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio, "mlflow": _mlflow
}  # fmt: skip


@contextmanager
def _report_failure(name: str) -> Generator[None]:
    """Raise a UserError of one line instead of any error of the logger `name`, its service or the network.

    Text that its package prints goes to stderr, since results are on stdout.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except Exception as error:
        raise UserError(f"{TITLES[name]}: {shorten(error)}; try again, or pass {LEAVE_OUT}") from None


def _import_extra(name: str) -> Any:
    if name in PRIVATE:
        os.environ.setdefault(*PRIVATE[name])
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise _missing_error(name, error.name or name) from None


def _missing_error(name: str, package: str) -> UserError:
    return UserError(
        f"logging.tracker: {name} needs the package {package}; pip install 'tercet[{name}]', or pass {LEAVE_OUT}"
    )

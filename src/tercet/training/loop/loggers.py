"""Loggers for TensorBoard and W&B, and a check of their requirements before anything is read or trained."""

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.config import UserError, to_plain
from tercet.messages import shorten
from tercet.training.recipe.recipe import Recipe
from tercet.training.recipe.specs import LoggingSpec

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger

LEAVE_OUT = {"tensorboard": "--set logging.tensorboard=false", "wandb": "--set logging.wandb=none"}
TITLES = {"tensorboard": "TensorBoard", "wandb": "W&B"}


def check_loggers(spec: LoggingSpec) -> None:
    """Check that the packages of the enabled loggers are installed, and that W&B accepts the key.

    Raises:
        UserError: If a package is not installed, or W&B is used online and its key is missing or rejected.
    """
    for name, is_enabled in (("tensorboard", spec.tensorboard), ("wandb", spec.wandb != "none")):
        if is_enabled and find_spec(name) is None:
            raise _missing_error(name, name)
    if spec.wandb == "online":
        wandb = _wandb()
        with _report_failure("wandb"):
            has_key = wandb.login(prompt=False)
        if not has_key:
            raise UserError(
                "logging.wandb: online needs a key: run `wandb login`, set WANDB_API_KEY, or pass --set "
                "logging.wandb=offline and upload the run later with `wandb sync`"
            )


def make_loggers(recipe: Recipe, out: Path) -> "list[Logger]":
    """Return the loggers that a recipe enables, ready to write.

    If a logger fails later, it is disabled and training continues.

    Args:
        recipe: Recipe of the run.
        out: Run folder, into which the loggers write. Its name is the name of the run at W&B.

    Raises:
        UserError: If a logger cannot start.
    """
    loggers = dict[str, Any]()
    if recipe.logging.tensorboard:
        _import_extra("tensorboard")
        from pytorch_lightning.loggers import TensorBoardLogger

        loggers["tensorboard"] = TensorBoardLogger(out, name=None, version="tensorboard")
    if recipe.logging.wandb != "none":
        wandb = _wandb()
        from pytorch_lightning.loggers import WandbLogger

        from tercet.checkpoint.card import remove_folders  # imports torch

        offline = recipe.logging.wandb == "offline"
        settings = wandb.Settings(x_disable_stats=True, silent=True)
        loggers["wandb"] = WandbLogger(
            name=out.name, id=out.name, save_dir=out, project=recipe.logging.wandb_project, offline=offline,
            config=remove_folders(to_plain(recipe)), resume="allow", settings=settings,
        )  # fmt: skip
    for name, logger in loggers.items():
        with _report_failure(name):
            _ = logger.experiment  # connects now (on rank 0), so that errors do not occur at the first metrics
    if not loggers:
        return []
    from tercet.training.loop.tracker import Tracker  # imports torch

    return [Tracker(logger, TITLES[name]) for name, logger in loggers.items()]


@contextmanager
def _report_failure(name: str) -> Generator[None]:
    """Raise a UserError of one line instead of any error of the logger `name`, its service or the network."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{TITLES[name]}: {shorten(error)}; try again, or pass {LEAVE_OUT[name]}") from None


def _wandb() -> Any:
    return _import_extra("wandb")


def _import_extra(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise _missing_error(name, error.name or name) from None


def _missing_error(name: str, package: str) -> UserError:
    return UserError(
        f"logging.{name} needs the package {package}; pip install 'tercet[{name}]', or pass {LEAVE_OUT[name]}"
    )

"""Where figures go besides `metrics.csv`, and what that needs, which is checked before anything is read or trained."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tercet.config import UserError, to_plain
from tercet.messages import shorten
from tercet.training.recipe import Recipe
from tercet.training.specs import LoggingSpec

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger

LEAVE_OUT = {"tensorboard": "--set logging.tensorboard=false", "wandb": "--set logging.wandb=none"}


def check_loggers(spec: LoggingSpec) -> None:
    """Check that the packages and the account of the loggers are there.

    Raises:
        UserError: If a package is not installed, or W&B has no key and is to be written to online.
    """
    for name, is_wanted in (("tensorboard", spec.tensorboard), ("wandb", spec.wandb != "none")):
        if is_wanted and find_spec(name) is None:
            raise _missing_error(name, name)
    if spec.wandb == "online" and not _wandb().login(prompt=False):
        raise UserError(
            "logging.wandb: online needs a key: run `wandb login`, set WANDB_API_KEY, or --set logging.wandb=offline "
            "and send the run later by `wandb sync`"
        )


def make_loggers(recipe: Recipe, out: Path) -> "list[Logger]":
    """Return the loggers of a run, ready to write.

    Raises:
        UserError: If one cannot begin.
    """
    loggers = list[Any]()
    if recipe.logging.tensorboard:
        _import_extra("tensorboard")
        from pytorch_lightning.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(out, name=None, version="tensorboard"))
    if recipe.logging.wandb != "none":
        wandb = _wandb()
        from pytorch_lightning.loggers import WandbLogger

        from tercet.checkpoint.card import without_folders  # with torch

        offline = recipe.logging.wandb == "offline"
        settings = wandb.Settings(x_disable_stats=True, silent=True)
        logger = WandbLogger(
            name=out.name, id=out.name, save_dir=out, project=recipe.logging.wandb_project, offline=offline,
            config=without_folders(to_plain(recipe)), resume="allow", settings=settings,
        )  # fmt: skip
        try:
            _ = logger.experiment  # on rank 0; without it a refusal would come with the first figures
        except Exception as error:  # whatever the service or the network answers
            raise UserError(f"W&B: {shorten(error)}; try again, or {LEAVE_OUT['wandb']}") from None
        loggers.append(logger)
    return cast("list[Logger]", loggers)


def _wandb() -> Any:
    return _import_extra("wandb")


def _import_extra(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise _missing_error(name, error.name or name) from None


def _missing_error(name: str, package: str) -> UserError:
    return UserError(f"logging.{name} needs the package {package}; pip install 'tercet[{name}]', or {LEAVE_OUT[name]}")

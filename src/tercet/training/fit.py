"""Put model, data, strategy and actions together, and hand them to Lightning's Trainer."""

import logging
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger
from pytorch_lightning.strategies import ModelParallelStrategy, Strategy

from tercet.config import UserError, to_plain
from tercet.models import AnyModel
from tercet.training.datamodule import StepDataModule
from tercet.training.interruption import Interruption
from tercet.training.machine import PRECISIONS, accelerator, compile_in_place
from tercet.training.metrics_logger import MetricsLogger
from tercet.training.module import TrainingModule
from tercet.training.progress import ProgressBar
from tercet.training.recipe import Recipe
from tercet.training.step_actions import (
    AtomicCheckpointIO,
    CheckpointWriter,
    Export,
    MetricsAction,
    PlateauWarning,
    SampleWriter,
    StepActions,
    Validation,
)
from tercet.training.tasks.task import Task


def fit(
    task: Task,
    model: AnyModel,
    out: Path,
    *,
    precision: str,
    compiled: bool,
    export: Export,
    quiet: bool = False,
) -> int | None:
    """Train until the end, a signal, or patience runs out, from `out/resume.ckpt` where there is one.

    Returns:
        the number of the signal that stopped it, or None.
    """
    recipe, steps = task.recipe, task.plan.steps
    spec = recipe.training
    if compiled:
        compile_in_place(model, sharded=spec.strategy == "fsdp")
    module = TrainingModule(model, task)
    metrics = MetricsLogger(out / "metrics.csv")
    resume = out / "resume.ckpt"
    metrics.truncate(_saved_step(resume))

    validation = Validation(task)
    interruption = Interruption()
    bar = ProgressBar(validation, steps)
    actions: list[Any] = [
        validation,
        MetricsAction(validation, task.plan, spec.log_every, spent=metrics.seconds_spent()),
        *([] if quiet else [bar, PlateauWarning(validation)]),
        *([SampleWriter(validation, out / "samples", lambda module: task.sample(module.eval_model))]
          if recipe.task.has_samples and spec.strategy != "fsdp" else []),
        interruption,
        CheckpointWriter(validation, out, spec.save_every, export),
    ]  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(_without_adverts())
        trainer = pl.Trainer(
            accelerator=accelerator(spec),
            devices=spec.devices,
            num_nodes=spec.nodes,
            strategy=_strategy(recipe),
            precision=PRECISIONS[precision],
            max_steps=steps,
            logger=[metrics, *_loggers(recipe, out)],
            callbacks=[interruption, StepActions(*actions)],
            plugins=[AtomicCheckpointIO()],
            default_root_dir=out,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            limit_val_batches=0,
            log_every_n_steps=spec.log_every,
        )
        stack.enter_context(interruption)
        if not quiet:
            stack.enter_context(bar)
        trainer.fit(
            module, datamodule=StepDataModule(task), ckpt_path=resume if resume.exists() else None, weights_only=True
        )
    return interruption.signal


def _saved_step(resume: Path) -> int:
    if not resume.exists():
        return 0
    return int(torch.load(resume, map_location="cpu", weights_only=True, mmap=True)["global_step"])


def _strategy(recipe: Recipe) -> str | Strategy:
    spec = recipe.training
    if spec.strategy == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=spec.world_size, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    return "ddp" if spec.strategy == "ddp" or spec.world_size > 1 else "auto"


def _loggers(recipe: Recipe, out: Path) -> list[Logger]:
    loggers: list[Logger] = []
    if recipe.logging.tensorboard:
        _extra("tensorboard")
        from pytorch_lightning.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(out, name=None, version="tensorboard"))
    if recipe.logging.wandb != "none":
        wandb = _extra("wandb")
        from pytorch_lightning.loggers import WandbLogger

        offline = recipe.logging.wandb == "offline"
        settings = wandb.Settings(x_disable_stats=True, silent=True)
        logger = WandbLogger(
            name=out.name, id=out.name, save_dir=out, project=recipe.logging.wandb_project, offline=offline,
            config=to_plain(recipe), resume="allow", settings=settings,
        )  # fmt: skip
        loggers.append(cast(Logger, logger))
    return loggers


def _extra(name: str) -> Any:
    """An optional library; where it is absent, which extra to install."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"logging.{name} needs the package {error.name}; pip install 'tercet[{name}]', or leave it out"
        ) from None


@contextmanager
def _without_adverts() -> Generator[None]:
    """Lightning prints adverts, and advice about matters that are settled here."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        yield

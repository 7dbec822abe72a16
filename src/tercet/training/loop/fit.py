"""Put model, data, strategy and actions together, and hand them to Lightning's Trainer."""

import logging
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import pytorch_lightning as pl
from pytorch_lightning.strategies import Strategy

from tercet.checkpoint import load_model
from tercet.checkpoint.adapter import fill_adapter
from tercet.models import AnyModel
from tercet.training.compute.compiling import Compiled, compiled_loss
from tercet.training.distributed.cluster import cluster_environment
from tercet.training.distributed.devices import accelerator
from tercet.training.distributed.liveness import Liveness
from tercet.training.loop.checkpoint_io import CheckpointFolderIO
from tercet.training.loop.datamodule import StepDataModule
from tercet.training.loop.interruption import Interruption
from tercet.training.loop.loggers import make_loggers
from tercet.training.loop.metrics_logger import MetricsLogger
from tercet.training.loop.module import TrainingModule
from tercet.training.loop.notebook_display import NotebookDisplay, in_notebook
from tercet.training.loop.out_of_memory import MicroBatchHalving
from tercet.training.loop.progress import Progress, ProgressBar
from tercet.training.loop.step_actions import (
    CheckpointWriter,
    Export,
    MetricsAction,
    PlateauWarning,
    SampleWriter,
    StepActions,
    Validation,
)
from tercet.training.recipe.recipe import Recipe
from tercet.training.run_folder.arithmetic import MICRO_BATCH
from tercet.training.run_folder.checkpoints import METRICS, Checkpoints
from tercet.training.run_folder.folder import Start
from tercet.training.tasks.task import Task

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
PRECISIONS: dict[str, Precision] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def fit(
    task: Task,
    model: AnyModel,
    out: Path,
    *,
    precision: str,
    compiled: Compiled,
    start: Start,
    checkpoints: Checkpoints,
    arithmetic: Mapping[str, str],
    export: Export,
    save_record: Callable[[int], None],
    save_micro_batch: Callable[[int, int], None],
    exact: bool = False,
    quiet: bool = False,
) -> int | None:
    """Train from where it begins until the end, a signal, or patience runs out.

    Args:
        arithmetic: in what the steps from here on are worked out.
        save_record: called after each save, with its step.
        save_micro_batch: called where a step is out of memory, with its number from 0 on and the smaller micro-batch.
        exact: the run is to end as an unbroken one to the last bit.

    Returns:
        the number of the signal that stopped it, or None.

    Raises:
        RankLost: where another rank is gone, and this one was about to exchange something with it.
    """
    recipe, steps = task.recipe, task.plan.steps
    spec = recipe.training
    loss = compiled_loss(task, model, accelerator(spec), compiled)
    if start.weights is not None:
        if start.weights.adapter is None:
            model.load_state_dict(start.weights.model.state_dict())
        else:
            fill_adapter(model, start.weights.adapter)
    io = CheckpointFolderIO(checkpoints, _arithmetic_so_far(start, arithmetic), save_record)

    def note_micro_batch(step: int, micro: int) -> None:
        io.arithmetic.append({**arithmetic, MICRO_BATCH: str(micro)})
        save_micro_batch(step, micro)

    halving = MicroBatchHalving(task, exact=exact or spec.exact, save=note_micro_batch)
    module = TrainingModule(model, task, halving, loss, reuses_gradients=compiled == "cuda_graphs")
    metrics = MetricsLogger(out / METRICS)
    validation = Validation(task)
    if start.weights is not None:
        validation.take_best(load_model(out).card)
    interruption, liveness = Interruption(), Liveness(spec, out)
    samples = SampleWriter(validation, out / "samples", lambda module: task.sample(module.eval_model))
    progress = Progress(validation, steps)
    bar = (
        NotebookDisplay(progress, metrics.path, lambda: samples.last)
        if in_notebook()
        else ProgressBar(progress, metrics.path)
    )
    actions: list[Any] = [
        validation,
        MetricsAction(validation, task.plan, spec.log_every, spent=metrics.seconds_spent()),
        *([] if quiet else [bar, PlateauWarning(validation)]),
        *([samples] if recipe.task.has_samples and not spec.is_sharded else []),
        interruption,
        CheckpointWriter(validation, spec.save_every, export, checkpoints.state_path),
    ]  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(_without_adverts())
        trainer = pl.Trainer(
            accelerator=accelerator(spec),
            devices=spec.devices,
            num_nodes=spec.nodes,
            strategy=_strategy(recipe, io),
            precision=PRECISIONS[precision],
            deterministic=(spec.exact and accelerator(spec) == "cuda") or None,
            max_steps=steps,
            logger=[metrics, *make_loggers(recipe, out)],
            callbacks=[interruption, liveness, StepActions(*actions)],
            plugins=cast(Any, [io, *([] if (environment := cluster_environment()) is None else [environment])]),
            default_root_dir=out,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            limit_val_batches=0,
            log_every_n_steps=spec.log_every,
        )
        stack.enter_context(interruption)
        stack.enter_context(liveness)
        if not quiet:
            stack.enter_context(bar)
        if start.step:  # Lightning counts steps by its optimizer's
            trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed = start.step
        state = None if start.checkpoint is None else start.checkpoint.state
        data = stack.enter_context(closing(StepDataModule(task)))
        trainer.fit(module, datamodule=data, ckpt_path=state, weights_only=True)
    return interruption.signal


def _arithmetic_so_far(start: Start, now: Mapping[str, str]) -> list[Mapping[str, str]]:
    before = () if start.checkpoint is None else start.checkpoint.arithmetic
    return [*(one for one in before if one != now), now]


def _strategy(recipe: Recipe, io: CheckpointFolderIO) -> str | Strategy:
    spec = recipe.training
    if spec.is_sharded:
        from tercet.training.loop.sharded_strategy import ShardedStrategy

        return ShardedStrategy(spec.data_parallel_size, spec.tensor_parallel_size, io, offload=spec.cpu_offload)
    return "ddp" if spec.world_size > 1 else "auto"


@contextmanager
def _without_adverts() -> Generator[None]:
    """Lightning prints adverts, and advice about matters that are settled here."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        yield

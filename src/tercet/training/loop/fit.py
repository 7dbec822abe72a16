"""Training loop: combine model, data, strategy and actions, and run Lightning's Trainer."""

import logging
import os
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import Strategy

from tercet.checkpoint import load_model
from tercet.checkpoint.adapter import fill_adapter
from tercet.models import AnyModel
from tercet.training.compute.compiling import CompileMode, compiled_loss
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
from tercet.training.loop.problem_warnings import ProblemWarnings
from tercet.training.loop.progress import Progress, ProgressBar
from tercet.training.loop.step_actions import (
    CheckpointWriter,
    Export,
    MetricsAction,
    Pause,
    SampleWriter,
    StepActions,
    Validation,
)
from tercet.training.recipe.recipe import Recipe
from tercet.training.run_folder.arithmetic import CUBLAS_WORKSPACE, MICRO_BATCH
from tercet.training.run_folder.checkpoints import METRICS, Checkpoints
from tercet.training.run_folder.folder import StartPoint
from tercet.training.tasks.task import Task

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
PRECISIONS: dict[str, Precision] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}

Bar = NotebookDisplay | ProgressBar


@dataclass(frozen=True, kw_only=True)
class TrainingLoop:
    """The training of a run from its start point to its end, by Lightning's Trainer.

    Args:
        task: Data and objective.
        model: Model with its initial weights, which is trained in place.
        out: Run folder.
        precision: fp32, bf16 or fp16.
        compile_mode: How steps are compiled.
        start: Start point: step 0, a checkpoint, or the weights of a saved model.
        checkpoints: Checkpoints of the run.
        arithmetic: Numerical environment of the remaining steps (see `run_folder/arithmetic.py`).
        export: Function that writes the model into the run folder (see `Export`).
        save_record: Function called after each save with the number of trained steps.
        save_micro_batch: Function called if a step is out of memory, with the step, counted from 0, and the new size of
            micro-batches (in rows, or in tokens per side for translation).
        exact: If True, the weights at the end must be bitwise identical to those of an uninterrupted run, so the size
            of micro-batches must not change.
        pause_at: Number of steps after which the run is saved and pauses; None for no pause.
        quiet: If True, do not show progress on stderr.
    """

    task: Task
    model: AnyModel
    out: Path
    precision: str
    compile_mode: CompileMode
    start: StartPoint
    checkpoints: Checkpoints
    arithmetic: Mapping[str, str]
    export: Export
    save_record: Callable[[int], None]
    save_micro_batch: Callable[[int, int], None]
    exact: bool = False
    pause_at: int | None = None
    quiet: bool = False

    def run(self) -> int | None:
        """Train until the last step, a pause, a signal, or too many validations without improvement.

        Returns:
            Number of the signal that stopped the run, or None.

        Raises:
            NonFiniteLoss: If the loss or a gradient is not finite.
            OutOfMemory: If a step does not fit into memory and cannot be repeated with smaller micro-batches.
            RankLost: If an exchange with another rank failed.
        """
        loss = compiled_loss(self.task, self.model, accelerator(self.task.recipe.training), self.compile_mode)
        self._load_weights()
        io = CheckpointFolderIO(self.checkpoints, self._arithmetic_so_far(), self.save_record)
        reuses = self.compile_mode == "cuda_graphs"
        module = TrainingModule(self.model, self.task, self._halving(io), loss, reuses_gradients=reuses)
        metrics, interruption = MetricsLogger(self.out / METRICS), Interruption()
        liveness = Liveness(self.task.recipe.training, self.out)
        validation = Validation(self.task)
        samples = SampleWriter(validation, self.out / "samples", lambda module: self.task.sample(module.eval_model))
        bar = None if self.quiet else self._bar(validation, metrics, samples)
        actions = self._actions(validation, metrics, bar, samples, interruption)
        with ExitStack() as stack:
            stack.enter_context(_silence_lightning())
            stack.enter_context(_restore_determinism())
            trainer = self._trainer(io, metrics, [interruption, liveness, StepActions(*actions)])
            stack.enter_context(interruption)
            stack.enter_context(liveness)
            if bar is not None:
                stack.enter_context(bar)
            if self.start.step:  # Lightning's `global_step` is this count of optimizer steps
                trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed = self.start.step
            state = None if self.start.checkpoint is None else self.start.checkpoint.state
            data = stack.enter_context(closing(StepDataModule(self.task)))
            trainer.fit(module, datamodule=data, ckpt_path=state, weights_only=True)
        return interruption.signal

    def _load_weights(self) -> None:
        """Load the weights of the start point, if it is a saved model instead of a checkpoint."""
        if self.start.weights is None:
            return
        if self.start.weights.adapter is None:
            self.model.load_state_dict(self.start.weights.model.state_dict())
        else:
            fill_adapter(self.model, self.start.weights.adapter)

    def _arithmetic_so_far(self) -> list[Mapping[str, str]]:
        previous = () if self.start.checkpoint is None else self.start.checkpoint.arithmetic
        return [*(entry for entry in previous if entry != self.arithmetic), self.arithmetic]

    def _halving(self, io: CheckpointFolderIO) -> MicroBatchHalving:
        def save(step: int, micro: int) -> None:
            io.arithmetic.append({**self.arithmetic, MICRO_BATCH: str(micro)})
            self.save_micro_batch(step, micro)

        return MicroBatchHalving(self.task, exact=self.exact or self.task.recipe.training.exact, save=save)

    def _bar(self, validation: Validation, metrics: MetricsLogger, samples: SampleWriter) -> Bar:
        progress = Progress(validation, self.task.plan.steps)
        if in_notebook():
            return NotebookDisplay(progress, metrics.path, lambda: samples.last)
        return ProgressBar(progress, metrics.path)

    def _actions(
        self,
        validation: Validation,
        metrics: MetricsLogger,
        bar: Bar | None,
        samples: SampleWriter,
        interruption: Interruption,
    ) -> list[Any]:
        """Return the actions after each step, in order."""
        task, spec = self.task, self.task.recipe.training
        if self.start.weights is not None:
            validation.restore_best(load_model(self.out).card)
        return [
            validation,
            MetricsAction(validation, task.plan, spec.log_every, elapsed=metrics.seconds_spent()),
            *([] if bar is None else [bar, ProblemWarnings(task, self.model, validation, metrics.path)]),
            *([samples] if task.recipe.task.has_samples and not spec.is_sharded else []),
            *([] if self.pause_at is None else [Pause(self.pause_at)]),
            interruption,
            CheckpointWriter(validation, spec.save_every, self.export, self.checkpoints.state_path),
        ]

    def _trainer(self, io: CheckpointFolderIO, metrics: MetricsLogger, callbacks: list[pl.Callback]) -> pl.Trainer:
        recipe, spec, environment = self.task.recipe, self.task.recipe.training, cluster_environment()
        return pl.Trainer(
            accelerator=accelerator(spec),
            devices=spec.devices,
            num_nodes=spec.nodes,
            strategy=_strategy(recipe, io),
            precision=PRECISIONS[self.precision],
            deterministic=(spec.exact and accelerator(spec) == "cuda") or None,
            max_steps=self.task.plan.steps,
            logger=[metrics, *make_loggers(recipe, self.out, start=self.start.step)],
            callbacks=callbacks,
            plugins=cast(Any, [io, *([] if environment is None else [environment])]),
            default_root_dir=self.out,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            limit_val_batches=0,
            log_every_n_steps=spec.log_every,
        )


def _strategy(recipe: Recipe, io: CheckpointFolderIO) -> str | Strategy:
    spec = recipe.training
    if spec.is_sharded:
        from tercet.training.loop.sharded_strategy import ShardedStrategy

        return ShardedStrategy(spec.data_parallel_size, spec.tensor_parallel_size, io, offload=spec.cpu_offload)
    return "ddp" if spec.world_size > 1 else "auto"


@contextmanager
def _restore_determinism() -> Generator[None]:
    """Restore the settings of this process that Lightning changes for deterministic training."""
    enabled, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    benchmark, workspace = torch.backends.cudnn.benchmark, os.environ.get(CUBLAS_WORKSPACE)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(CUBLAS_WORKSPACE, None)
        else:
            os.environ[CUBLAS_WORKSPACE] = workspace


@contextmanager
def _silence_lightning() -> Generator[None]:
    """Suppress Lightning's advertisements, and its warnings about settings that Tercet has chosen."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        yield

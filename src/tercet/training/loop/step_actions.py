"""Actions after each step, in a fixed order: validate, log, show progress, sample, stop on a signal, save.

Lightning calls a single callback, which calls the actions one after another. Saving comes last, so a checkpoint
includes the results of all other actions of its step, and a resumed run neither repeats nor skips any of them.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from tercet.checkpoint import Card
from tercet.storage import report_write_errors, write_atomically
from tercet.training.loop.module import TrainingModule
from tercet.training.recipe.recipe import objective_of
from tercet.training.tasks.plan import Plan
from tercet.training.tasks.task import Task

# Function that writes the model of a module into a folder of the run. Its arguments are the name of the folder, the
# module, the number of trained steps, and the metrics of the last step (empty if it was not validated).
Export = Callable[[Literal["best", "last"], TrainingModule, int, dict[str, float]], None]


class StepAction(Protocol):
    """An action after each step."""

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None: ...


class StepActions(Callback):
    """Lightning callback that calls actions in order after each step, and saves the state of stateful ones.

    Args:
        actions: Actions in the order in which they are called.
    """

    def __init__(self, *actions: StepAction) -> None:
        self.actions = actions

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for action in self.actions:
            if isinstance(action, Validation):
                action.renew_patience(trainer.global_step)
                # The last checkpoint is already out of patience: the run was killed after this save, and it ends now.
                trainer.should_stop = trainer.should_stop or action.out_of_patience

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for action in self.actions:
            action.after_step(trainer, cast(TrainingModule, pl_module))

    def state_dict(self) -> dict[str, Any]:
        return {type(action).__name__: action.state for action in self.actions if isinstance(action, StatefulAction)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for action in self.actions:
            if isinstance(action, StatefulAction):
                action.state = state_dict[type(action).__name__]


class StatefulAction:
    """An action whose state is saved in the checkpoint. The state may contain only plain numbers."""

    state: dict[str, Any]


class Validation(StatefulAction):
    """Action that computes the validation loss and the scores of the task.

    It validates every `validate_every` steps and at the last step, and stops the run after `patience` validations in a
    row without improvement. The count starts again if a run that was stopped in this way is extended.

    Attributes:
        metrics: Validation metrics of the current step; empty if the step was not validated.
        improved: True if the current step was validated and is the best so far by the metric `best_by` of the task.
    """

    def __init__(self, task: Task) -> None:
        spec = task.recipe.training
        self.task, self.interval, self.patience = task, spec.validate_every, spec.patience
        self.best_by = task.recipe.task.best_by
        self.state = {"best": float("inf"), "best_step": 0, "without_better": 0}
        self.metrics: dict[str, float] = {}
        self.improved = False

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        self.metrics, self.improved = {}, False
        if trainer.global_step % self.interval and trainer.global_step != module.total_steps:
            return
        self.metrics = {**self._validate(trainer, module), **self._scores(trainer, module)}
        value = self._cost(self.metrics)
        self.improved = value < self.state["best"]
        if self.improved:
            self.state = {"best": value, "best_step": trainer.global_step, "without_better": 0}
        else:
            self.state = {**self.state, "without_better": self.state["without_better"] + 1}
        self.renew_patience(trainer.global_step)
        if self.out_of_patience:
            trainer.should_stop = True

    def renew_patience(self, step: int) -> None:
        """Reset the count of validations without improvement if the run was extended when it was out of patience.

        Args:
            step: Number of trained steps. The count is reset only if the run was extended at this step.
        """
        if self.out_of_patience and any(first == step for first, _ in self.task.plan.lengths):
            self.state = {**self.state, "without_better": 0}

    def restore_best(self, card: Card) -> None:
        """Set the best value so far to that of a model card, if the card contains the metric.

        This is needed if the run starts from the weights of a saved model, without the state of a checkpoint. The count
        of validations without improvement starts again.
        """
        if f"val/{self.best_by}" in card.metrics:
            self.state = {"best": self._cost(card.metrics), "best_step": card.step, "without_better": 0}

    def _cost(self, metrics: Mapping[str, float]) -> float:
        """Return the value to minimize: the loss, or the negative of another metric, such as BLEU."""
        value = metrics[f"val/{self.best_by}"]
        return value if self.best_by == "loss" else -value

    @property
    def out_of_patience(self) -> bool:
        return self.patience is not None and self.state["without_better"] >= self.patience

    @torch.no_grad()
    def _validate(self, trainer: pl.Trainer, module: TrainingModule) -> dict[str, float]:
        """Return the validation loss and the other metrics of `validate_batch`, averaged over targets.

        The loss is -ln p without label smoothing, so that its exponential is the perplexity. The mean of an objective
        of another package is a separate metric.
        """
        module.eval()
        rank, world = module.spec.data_parallel_rank(trainer.global_rank), module.spec.data_parallel_size
        groups = self.task.validation_groups()
        # Values of each batch, by metric. They are read from a GPU only at the end, because each read makes it wait.
        parts: dict[str, list[Tensor]] = {}
        # These batches differ in shape from training batches, and compiling for them would not pay off.
        with trainer.precision_plugin.forward_context(), torch.compiler.set_stance("force_eager"):
            for first in range(0, len(groups), world):
                # With sharded weights, all ranks must call the model equally often.
                batch = self.task.validation_batch(groups[min(first + rank, len(groups) - 1)])
                on_device = module.transfer_batch_to_device(batch, module.device, 0)
                loss, extra = self.task.validate_batch(module.eval_model, on_device)
                if objective_of(self.task.recipe) is not None:
                    extra = {"objective": loss.total, **extra}
                for name, value in {"count": loss.count, "loss": loss.plain, **extra}.items():
                    parts.setdefault(name, []).append(value)
        module.train()
        totals = dict(
            zip(parts, self._sum_over_batches(trainer, module, list(parts.values()), len(groups)), strict=True)
        )
        targets = max(1.0, totals.pop("count"))
        return {f"val/{name}": value / targets for name, value in totals.items()}

    def _sum_over_batches(
        self, trainer: pl.Trainer, module: TrainingModule, parts: list[list[Tensor]], n_batches: int
    ) -> list[float]:
        """Return the sum of each metric over the batches of all ranks.

        Values are added in the order of the batches, whichever rank computed them, and in float64, because float32
        cannot represent odd numbers above 2^24. They are added on the CPU, because a GPU may not support float64.

        Args:
            trainer, module: Trainer and module of the run.
            parts: For each metric, its values for the batches of this rank.
            n_batches: Number of batches of all ranks together.
        """
        local = torch.stack([torch.stack(values).cpu().double() for values in parts])  # (metrics, batches of a rank)
        all_batches = torch.zeros(len(parts), n_batches, dtype=torch.float64)
        rank, world = module.spec.data_parallel_rank(trainer.global_rank), module.spec.data_parallel_size
        columns = all_batches[:, rank::world]
        columns.copy_(local[:, : columns.shape[1]])
        if world > 1:  # the columns of other ranks are 0 here
            all_batches = cast(Tensor, trainer.strategy.reduce(all_batches.to(module.device), reduce_op="sum")).cpu()
        return all_batches.sum(1).tolist()

    def _scores(self, trainer: pl.Trainer, module: TrainingModule) -> dict[str, float]:
        if module.spec.is_sharded:  # no device has the whole model to generate with
            return {}
        with torch.compiler.set_stance("force_eager"):
            scores = self.task.scores(module.eval_model) if trainer.is_global_zero else {}
        return trainer.strategy.broadcast(scores)


class MetricsAction:
    """Action that sends metrics to all loggers.

    It logs training metrics every `interval` steps and at the first and last step, and the metrics of each validation.

    Args:
        validation: Validation of the run.
        plan: Plan of the run, for the number of epochs.
        interval: Steps between two logs of training metrics.
        elapsed: Seconds of training before this process started, for the metric `seconds`.
    """

    def __init__(self, validation: Validation, plan: Plan, interval: int, *, elapsed: float = 0.0) -> None:
        self.validation, self.interval, self.plan = validation, interval, plan
        self.last_time = time.perf_counter()
        self.start = self.last_time - elapsed
        self.last_tokens: int | None = None

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        step, now = trainer.global_step, time.perf_counter()
        metrics = {"epoch": self.plan.epoch(step - 1), "seconds": now - self.start}
        metrics |= self.validation.metrics
        if step % self.interval == 0 or step in (1, module.total_steps):
            metrics["train/loss"] = float(module.last_loss.mean)
            metrics["lr"] = trainer.optimizers[0].param_groups[0]["lr"]
            metrics["tokens"] = module.tokens_seen
            if module.spec.label_smoothing or objective_of(module.task.recipe) is not None:
                metrics["train/nll"] = float(module.last_loss.plain_mean)
            if module.last_norm is not None:
                metrics["grad_norm"] = float(module.last_norm)
            if self.last_tokens is not None:
                metrics["tokens_per_second"] = (module.tokens_seen - self.last_tokens) / (now - self.last_time)
            self.last_time, self.last_tokens = now, module.tokens_seen
        if len(metrics) > 2:
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step)


class SampleWriter:
    """Action that writes a sample of the model at each validation, to a file such as `samples/step-000250.txt`.

    Args:
        validation: Validation of the run.
        folder: Folder of the samples, which is created.
        write: Function that returns a sample of the model of a module.

    Attributes:
        last: Last sample; empty if there is none yet.
    """

    def __init__(self, validation: Validation, folder: Path, write: Callable[[TrainingModule], str]) -> None:
        self.validation, self.folder, self.write = validation, folder, write
        self.last = ""

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        if self.validation.metrics and trainer.is_global_zero:
            with report_write_errors(self.folder):
                self.folder.mkdir(exist_ok=True)
            with torch.compiler.set_stance("force_eager"):
                self.last = self.write(module)
            write_atomically(self.folder / f"step-{trainer.global_step:06d}.txt", self.last.encode())


class Pause:
    """Action that ends the training of this process after a step, which is saved as any last step of a process.

    Args:
        step: Number of trained steps.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        if trainer.global_step == self.step:
            trainer.should_stop = True


class CheckpointWriter:
    """Action that writes models and checkpoints.

    The model folder `best` is written when validation improves. A checkpoint and the model folder `last` are written
    every `interval` steps and when training ends or stops. With sharded weights, `last` is written only then, because
    gathering the weights on one device would delay training at each save.

    Args:
        validation: Validation of the run.
        interval: Steps between two checkpoints.
        export: Function that writes a model into the run folder (see `Export`).
        state_path: Function that returns the path of the state file of a checkpoint, given the number of trained steps.
    """

    def __init__(
        self, validation: Validation, interval: int, export: Export, state_path: Callable[[int], Path]
    ) -> None:
        self.validation, self.interval, self.export, self.state_path = validation, interval, export, state_path

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        step = trainer.global_step
        if self.validation.improved:
            self.export("best", module, step, self.validation.metrics)
        ends = step == module.total_steps or trainer.should_stop
        if ends or step % self.interval == 0:
            if ends or not module.spec.is_sharded:
                self.export("last", module, step, self.validation.metrics)
            trainer.save_checkpoint(self.state_path(step))

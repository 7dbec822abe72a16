"""What happens between one step and the next, in a fixed order: validate, log, show, sample, save.

Lightning calls one callback; it calls the actions one after another. Because saving comes last, a checkpoint holds all
that its step brought about, and a resumed run neither repeats nor skips any of it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from tercet.checkpoint import write_atomically
from tercet.objectives import Batch, Loss, causal_loss
from tercet.objectives.loss import no_loss
from tercet.training.module import TrainingModule

Export = Callable[[str, TrainingModule, int, dict[str, float]], None]  # folder, module, step, metrics


class Action(Protocol):
    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None: ...


class AfterStep(Callback):
    def __init__(self, *actions: Action) -> None:
        self.actions = actions

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if any(isinstance(action, Validation) and action.out_of_patience for action in self.actions):
            trainer.should_stop = True  # killed after its last save: there is nothing left to train

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for action in self.actions:
            action.after_step(trainer, cast(TrainingModule, pl_module))

    def state_dict(self) -> dict[str, Any]:
        return {type(action).__name__: action.state for action in self.actions if isinstance(action, Remembering)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for action in self.actions:
            if isinstance(action, Remembering):
                action.state = state_dict[type(action).__name__]


class Remembering:
    """An action with a memory that belongs in the checkpoint: plain numbers only."""

    state: dict[str, Any]


class Validation(Remembering):
    """The loss on the validation set, every `every` steps; stops the run after `patience` times without a better one.

    `now` is the loss where this step was one to validate at, else None.
    """

    def __init__(self, batches: Callable[[], list[Batch]], every: int, patience: int | None) -> None:
        self.batches, self.every, self.patience = batches, every, patience
        self.state = {"best": float("inf"), "best_step": 0, "without_better": 0}
        self.now: float | None = None

    @property
    def improved(self) -> bool:
        return self.now is not None and self.state["without_better"] == 0

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        self.now = None
        if trainer.global_step % self.every and trainer.global_step != module.total_steps:
            return
        self.now = self._measure(trainer, module)
        if self.now < self.state["best"]:
            self.state = {"best": self.now, "best_step": trainer.global_step, "without_better": 0}
        else:
            self.state = {**self.state, "without_better": self.state["without_better"] + 1}
        if self.out_of_patience:
            trainer.should_stop = True

    @property
    def out_of_patience(self) -> bool:
        return self.patience is not None and self.state["without_better"] >= self.patience

    @torch.no_grad()
    def _measure(self, trainer: pl.Trainer, module: TrainingModule) -> float:
        module.eval()
        loss = no_loss(module.device)
        # Windows have other shapes than training rows: not worth a compilation of their own.
        with trainer.precision_plugin.forward_context(), torch.compiler.set_stance("force_eager"):
            for batch in self.batches():
                loss = loss + causal_loss(module.model, module.transfer_batch_to_device(batch, module.device, 0))
        module.train()

        def over_all_devices(value: Tensor) -> Tensor:
            return cast(Tensor, trainer.strategy.reduce(value, reduce_op="sum"))

        return float(Loss(over_all_devices(loss.total), over_all_devices(loss.count)).mean)


class Figures:
    """A line of figures to every logger, every `every` steps and at each validation."""

    def __init__(self, validation: Validation, tokens_per_step: int, steps_per_epoch: float, every: int) -> None:
        self.validation, self.every = validation, every
        self.tokens_per_step, self.steps_per_epoch = tokens_per_step, steps_per_epoch
        self.started = self.since = time.perf_counter()
        self.since_step: int | None = None

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        step, now = trainer.global_step, time.perf_counter()
        figures = {"epoch": (step - 1) / self.steps_per_epoch, "seconds": now - self.started}
        if self.validation.now is not None:
            figures["val/loss"] = self.validation.now
        if step % self.every == 0 or step in (1, module.total_steps):
            figures["train/loss"] = float(module.last.mean)
            figures["lr"] = trainer.optimizers[0].param_groups[0]["lr"]
            figures["tokens"] = float(step * self.tokens_per_step)
            if module.last_norm is not None:
                figures["grad_norm"] = float(module.last_norm)
            if self.since_step is not None:
                figures["tokens_per_second"] = (step - self.since_step) * self.tokens_per_step / (now - self.since)
            self.since, self.since_step = now, step
        if len(figures) > 2:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step)


class Samples:
    """Text by the model as it is at each validation, in `samples/step-000250.txt`."""

    def __init__(self, validation: Validation, folder: Path, write: Callable[[], str]) -> None:
        self.validation, self.folder, self.write = validation, folder, write

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        if self.validation.now is None:
            return
        if trainer.is_global_zero:
            self.folder.mkdir(exist_ok=True)
            with torch.compiler.set_stance("force_eager"):
                text = self.write()
            write_atomically(self.folder / f"step-{trainer.global_step:06d}.txt", text.encode())


class Checkpoints:
    """`best/` whenever validation improves; `resume.ckpt` and `last/` every `every` steps and at the end."""

    def __init__(self, validation: Validation, out: Path, every: int, export: Export) -> None:
        self.validation, self.out, self.every, self.export = validation, out, every, export

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        step = trainer.global_step
        metrics = {} if self.validation.now is None else {"val/loss": self.validation.now}
        if self.validation.improved:
            self.export("best", module, step, metrics)
        if step % self.every == 0 or step == module.total_steps or trainer.should_stop:
            self.export("last", module, step, metrics)
            trainer.save_checkpoint(self.out / "resume.ckpt")


class AtomicCheckpoints(TorchCheckpointIO):
    """Lightning's checkpoint file, put in its place only when whole: a process killed in a save leaves the old one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))

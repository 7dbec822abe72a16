"""Ctrl-C and SIGTERM let the step finish and save; a second Ctrl-C ends at once, without."""

import os
import signal
import sys
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from tercet.training.machine import is_lost_rank
from tercet.training.module import TrainingModule


class Interruption(Callback):
    """As a context it listens; as an action after each step it stops the run."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        self.before = self._listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if isinstance(error, RuntimeError) and is_lost_rank(error):
            # A launcher ends those that are left over; this one is ending anyway, and says why before it does.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _listen(self) -> dict[int, Any]:
        return {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._listen()  # Lightning has put handlers of its own in the place of ours, which leave without saving

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            os._exit(130)
        self.signal = number
        if number == signal.SIGINT:
            print("\nfinishing this step, then saving; Ctrl-C again to stop without", file=sys.stderr, flush=True)

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        # One device's signal stops all of them, or the others would wait for it for ever.
        stop = trainer.should_stop or self.signal is not None
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(stop, all=False)

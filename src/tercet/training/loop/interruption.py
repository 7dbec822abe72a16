"""Ctrl-C and SIGTERM let the step finish and save; a second Ctrl-C ends at once, without.

Lightning has handlers of its own, which leave without saving, exchange tensors in the middle of others' exchange, and
queue a SLURM job again: they are not let in.
"""

import os
import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from tercet.messages import is_first_process, print_note
from tercet.training.distributed.launch import RankLost
from tercet.training.loop.module import TrainingModule

STOP_WITHOUT_SIGNAL = 1  # without a signal, and less than the number of any that is listened to


class Interruption(Callback):
    """As a context it listens; as an action after each step it stops the run."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # no other may, as where Ray has that one
            self.previous_handlers = {
                number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)
        if self.previous_handlers and isinstance(error, RankLost):
            # A launcher ends those that are left over; this one is ending anyway, and says why before it does.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        connector = trainer._signal_connector  # pyright: ignore[reportPrivateUsage] (nothing else turns them off)
        connector.register_signal_handlers = lambda: None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            os._exit(130)
        self.signal = number
        if number == signal.SIGINT and is_first_process():
            print_note("\nfinishing this step, then saving; Ctrl-C again to stop without")

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        # One device's signal stops all of them, or the others would wait for it for ever; and all of them know it, or
        # the first would take the run for finished.
        local = self.signal or (STOP_WITHOUT_SIGNAL if trainer.should_stop else 0)
        highest = int(
            trainer.strategy.reduce(torch.tensor(local, device=trainer.strategy.root_device), reduce_op="max")
        )
        trainer.should_stop = highest > 0
        if highest > STOP_WITHOUT_SIGNAL:
            self.signal = highest

"""Handling of Ctrl-C, SIGTERM and SIGHUP (the terminal was closed): finish the step and save.

If Ctrl-C is pressed again, or after SIGTERM, the process exits immediately without saving.

Lightning's own signal handlers are disabled: they exit without saving, exchange tensors while other exchanges are in
progress, and requeue SLURM jobs.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from tercet.messages import is_first_process, print_note
from tercet.training.distributed.launch import RankLost
from tercet.training.loop.module import TrainingModule

STOP_WITHOUT_SIGNAL = 1  # sent to other ranks; with a signal, its number plus STOP_WITHOUT_SIGNAL


class Interruption(Callback):
    """Context manager that records signals, and action that stops the run after the current step.

    The signals are SIGINT, SIGTERM, and SIGHUP unless it is ignored, as after `nohup`.

    Attributes:
        signal: Number of the signal that a rank of the run has received; None if there was no signal.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        # Only the main thread can set handlers. Ray, for example, trains in another thread.
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT, signal.SIGTERM]
            if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
                numbers.append(signal.SIGHUP)
            self.previous_handlers = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, handler in self.previous_handlers.items():
            # A shell and the kernel both send SIGHUP. The second one must not prevent the end of the run.
            is_repeated = sys.platform != "win32" and number == self.signal == signal.SIGHUP
            signal.signal(number, signal.SIG_IGN if is_repeated else handler)
        if self.previous_handlers and isinstance(error, RankLost):
            # The launcher sends SIGTERM to the remaining ranks. This rank is exiting, and must first report why.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        connector = trainer._signal_connector  # pyright: ignore[reportPrivateUsage] (no public way to disable them)
        connector.register_signal_handlers = lambda: None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            os._exit(130)
        self.signal = number
        if number == signal.SIGINT and is_first_process():
            print_note("\nfinishing this step, then saving; press Ctrl-C again to stop without saving")

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        # A signal on one rank stops all ranks, since the others would otherwise wait for this rank forever. All ranks
        # receive the signal's number, since rank 0 would otherwise record the run as finished.
        local = STOP_WITHOUT_SIGNAL * trainer.should_stop if self.signal is None else STOP_WITHOUT_SIGNAL + self.signal
        highest = int(
            trainer.strategy.reduce(torch.tensor(local, device=trainer.strategy.root_device), reduce_op="max")
        )
        trainer.should_stop = highest > 0
        if highest > STOP_WITHOUT_SIGNAL:
            self.signal = highest - STOP_WITHOUT_SIGNAL

"""What a person watching sees, on stderr: on a terminal a bar with loss, tokens/s and time left; elsewhere a plain line
every few seconds."""

import sys
import time

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tercet.training.after_step import Validation
from tercet.training.module import TrainingModule


class Bar:
    def __init__(self, validation: Validation, total: int, tokens_per_step: int, *, line_every: float = 10.0) -> None:
        console = Console(stderr=True)
        self.terminal = console.is_terminal
        self.validation, self.total, self.tokens_per_step = validation, total, tokens_per_step
        self.every = 0.25 if self.terminal else line_every
        self.bar = Progress(
            TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(), console=console, disable=not self.terminal,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=total, figures="")
        self.last_validation = ""
        self.started = self.shown = time.perf_counter()
        self.first: int | None = None

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        now, step = time.perf_counter(), trainer.global_step
        if self.first is None:  # the first step is slower than all others, and says nothing about them
            self.first, self.started = step, now
        if self.validation.now is not None:
            self.last_validation = f"  validation {self.validation.now:.3f}"
        if now - self.shown < self.every and step != self.total:
            return
        self.shown = now
        done, spent = step - self.first, max(now - self.started, 1e-9)
        rate = done * self.tokens_per_step / spent
        figures = f"loss {float(module.last.mean):.3f}{self.last_validation}  {rate:,.0f} tokens/s"
        if self.terminal:
            self.bar.update(self.task, completed=step, figures=figures)
        else:
            left = spent * (self.total - step) / max(done, 1)
            print(f"step {step}/{self.total}  {figures}  {left:.0f} s left", file=sys.stderr, flush=True)

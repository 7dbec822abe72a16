"""What a person watching sees, on stderr: on a terminal a bar with loss, tokens/s and time left; elsewhere a plain line
every few seconds."""

import sys
import time

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tercet.training.module import TrainingModule
from tercet.training.step_actions import Validation


class ProgressBar:
    def __init__(self, validation: Validation, total: int, *, line_every: float = 10.0) -> None:
        console = Console(stderr=True)
        self.terminal = console.is_terminal
        self.validation, self.total = validation, total
        self.every = 0.25 if self.terminal else line_every
        self.bar = Progress(
            TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(), console=console, disable=not self.terminal,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=total, figures="")
        self.last_validation = ""
        self.started = self.shown = time.perf_counter()
        self.first: tuple[int, int] | None = None  # step and tokens

    def __enter__(self) -> "ProgressBar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        now, step = time.perf_counter(), trainer.global_step
        if self.first is None:  # the first step is slower than all others, and says nothing about them
            self.first, self.started = (step, module.tokens_seen), now
        if self.validation.figures:
            figures = (f"{name.removeprefix('val/')} {value:.3f}" for name, value in self.validation.figures.items())
            self.last_validation = f"  validation {', '.join(figures)}"
        if now - self.shown < self.every and step != self.total:
            return
        self.shown = now
        done, spent = step - self.first[0], max(now - self.started, 1e-9)
        rate = (module.tokens_seen - self.first[1]) / spent
        figures = f"loss {float(module.last.mean):.3f}{self.last_validation}  {rate:,.0f} tokens/s"
        if self.terminal:
            self.bar.update(self.task, completed=step, figures=figures)
        else:
            left = spent * (self.total - step) / max(done, 1)
            print(f"step {step}/{self.total}  {figures}  {left:.0f} s left", file=sys.stderr, flush=True)

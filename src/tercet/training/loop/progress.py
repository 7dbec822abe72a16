"""Progress on stderr: on a terminal a bar below the loss curve, elsewhere a plain line every ten seconds.

The bar shows the loss, tokens/s and the remaining time. The curve is redrawn at each validation.
"""

import sys
import time
from pathlib import Path

import pytorch_lightning as pl
import rich.progress as bars
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tercet.checkpoint.metrics import read_metrics
from tercet.config import UserError
from tercet.messages import print_note
from tercet.plots.text_curve import HEIGHT, terminal_curve
from tercet.training.loop.module import TrainingModule
from tercet.training.loop.step_actions import Validation


class Progress:
    """Step, loss, last validation and speed of a run, as text.

    Args:
        validation: Validation of the run.
        total: Number of steps of the run.
    """

    def __init__(self, validation: Validation, total: int) -> None:
        self.validation, self.total = validation, total
        self.last_validation = ""
        self.start_time = time.perf_counter()
        self.first: tuple[int, int] | None = None  # steps and tokens at the end of the first step of this process

    def note_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        """Update the state after a step; must be called after each step, even if no text is shown."""
        if self.first is None:  # the first step is excluded from the speed, since it is slower than the others
            self.first, self.start_time = (trainer.global_step, module.tokens_seen), time.perf_counter()
        if self.validation.metrics:
            metrics = (f"{name.removeprefix('val/')} {value:.3f}" for name, value in self.validation.metrics.items())
            self.last_validation = f"  validation {', '.join(metrics)}"

    def metrics(self, module: TrainingModule) -> str:
        """Return loss, last validation and, from the second step on, tokens/s, as text."""
        assert self.first is not None
        tokens = module.tokens_seen - self.first[1]
        rate = f"  {tokens / self._elapsed():,.0f} tokens/s" if tokens else ""
        return f"loss {module.current_loss:.3f}{self.last_validation}{rate}"

    def describe(self, trainer: pl.Trainer, module: TrainingModule) -> str:
        """Return the text of `metrics`, with the step before it and the remaining seconds after it."""
        assert self.first is not None
        step = trainer.global_step
        measured_steps = step - self.first[0]
        left = f"  {self._elapsed() * (self.total - step) / measured_steps:.0f} s left" if measured_steps else ""
        return f"step {step}/{self.total}  {self.metrics(module)}{left}"

    def _elapsed(self) -> float:
        return max(time.perf_counter() - self.start_time, 1e-9)


class ProgressBar:
    """Progress bar if stderr is a terminal, otherwise plain lines.

    Args:
        progress: Progress of the run.
        metrics: Path of the run's metrics.csv.
        line_every: Seconds between two lines if stderr is not a terminal.
    """

    def __init__(self, progress: Progress, metrics: Path, *, line_every: float = 10.0) -> None:
        console = Console(stderr=True)
        self.stream, self.terminal = sys.stderr, console.is_terminal  # stderr before `live` replaces it by a wrapper
        self.shows_curve = console.height >= 2 * HEIGHT  # the curve takes at most half of the terminal
        self.progress, self.metrics = progress, metrics
        self.interval = 0.25 if self.terminal else line_every
        self.bar = bars.Progress(
            bars.TextColumn("step"), bars.MofNCompleteColumn(), bars.BarColumn(),
            bars.TextColumn("{task.fields[metrics]}"), bars.TimeRemainingColumn(),
            console=console,
        )  # fmt: skip
        self.live = Live(self.bar, console=console)
        self.task = self.bar.add_task("", total=progress.total, metrics="")
        self.last_update = time.perf_counter()

    def __enter__(self) -> "ProgressBar":
        if self.terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.terminal:
            self.live.update(self.bar)  # the caller draws the final curve
            self.live.stop()

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        self.progress.note_step(trainer, module)
        if self.terminal and self.shows_curve and self.progress.validation.metrics:
            self.live.update(Group(Text.from_ansi(self._curve()), self.bar), refresh=True)
        now, step = time.perf_counter(), trainer.global_step
        if now - self.last_update < self.interval and step != self.progress.total:
            return
        self.last_update = now
        if self.terminal:
            self.bar.update(self.task, completed=step, metrics=self.progress.metrics(module))
        else:
            print_note(self.progress.describe(trainer, module))

    def _curve(self) -> str:
        try:
            return terminal_curve(read_metrics(self.metrics), self.stream)
        except UserError:  # the file was changed by another program; the bar continues without the curve
            return ""

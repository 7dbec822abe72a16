"""What a person watching a run in a notebook sees: how far it is, its losses as curves, the last sample.

IPython is no dependency: it is asked for only where the program runs within it, and a kernel shows what it displays.
"""

import sys
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from tercet.checkpoint.metrics import read_metrics
from tercet.config import UserError
from tercet.notebook import PALE, note
from tercet.plots.loss_curve import loss_curve
from tercet.training.loop.module import TrainingModule
from tercet.training.loop.progress import Progress

UPDATE_SECONDS = 0.5  # seconds between two pictures: an update is sent to the browser, and kept in the notebook's file
MAX_SAMPLE_CHARS = 600  # characters


def in_notebook() -> bool:
    """Whether this program runs in a kernel of IPython, whose front end shows more than text."""
    ipython: Any = sys.modules.get("IPython")  # imported long since, where it is so
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """One display, drawn anew as the run goes on.

    Args:
        metrics: the run's metrics.csv.
        sample: the last text that was written for people to read, "" before there is one.
    """

    def __init__(self, progress: Progress, metrics: Path, sample: Callable[[], str]) -> None:
        self.progress, self.metrics, self.sample = progress, metrics, sample
        self.handle: Any = None
        self.last_update = 0.0
        self.line = f"step 0/{progress.total}"
        self.step = 0

    def __enter__(self) -> "NotebookDisplay":
        from IPython.display import HTML, display

        self.handle = display(HTML(self._html()), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._update()  # with the sample of the last step, which is written after the step is shown

    def after_step(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        self.progress.note_step(trainer, module)
        now = time.perf_counter()
        if now - self.last_update < UPDATE_SECONDS and trainer.global_step != self.progress.total:
            return
        self.step, self.line = trainer.global_step, self.progress.describe(trainer, module)
        self._update()
        self.last_update = time.perf_counter()

    def _update(self) -> None:
        from IPython.display import HTML

        self.handle.update(HTML(self._html()))

    def _html(self) -> str:
        try:
            curve = loss_curve(read_metrics(self.metrics)) if self.metrics.is_file() else ""
        except UserError:  # a line that is half written yet
            curve = ""
        share = 100 * self.step / max(1, self.progress.total)
        bar = f'<progress value="{share:.1f}" max="100" style="width:100%;max-width:520px"></progress>'
        sample = self.sample()
        sample = sample if len(sample) <= MAX_SAMPLE_CHARS else f"{sample[:MAX_SAMPLE_CHARS]}..."
        text = f'<pre style="{PALE};white-space:pre-wrap;max-width:80ch">{escape(sample)}</pre>' if sample else ""
        return f"<div>{bar}{note(self.line)}{curve}{text}</div>"

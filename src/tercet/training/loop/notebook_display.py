"""Progress display in a notebook: progress bar, loss curves and the last sample.

IPython is not a dependency. It is imported only if the program runs in an IPython kernel.
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

UPDATE_SECONDS = 0.5  # minimum time between updates, each of which is sent to the browser and saved in the notebook
MAX_SAMPLE_CHARS = 600  # maximum number of characters of the displayed sample


def in_notebook() -> bool:
    """Return whether the program runs in an IPython kernel, whose front end can display HTML."""
    ipython: Any = sys.modules.get("IPython")  # a kernel has imported it already
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """Progress display in one output cell, which is updated during the run.

    Args:
        progress: Progress of the run.
        metrics: Path of the run's metrics.csv.
        sample: Function that returns the last sample, or "" if there is none yet.
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
        self._update()  # shows the last sample, which is written after the last update

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
        except UserError:  # the last line may be incomplete
            curve = ""
        share = 100 * self.step / max(1, self.progress.total)
        bar = f'<progress value="{share:.1f}" max="100" style="width:100%;max-width:520px"></progress>'
        sample = self.sample()
        sample = sample if len(sample) <= MAX_SAMPLE_CHARS else f"{sample[:MAX_SAMPLE_CHARS]}..."
        text = f'<pre style="{PALE};white-space:pre-wrap;max-width:80ch">{escape(sample)}</pre>' if sample else ""
        return f"<div>{bar}{note(self.line)}{curve}{text}</div>"

"""`metrics.csv`: a line a logged step, written at once, cut back to the checkpoint when a run is resumed.

Lightning's own CSV logger starts its file anew with each process; a resumed run must end with the file that an
uninterrupted one would have written.
"""

import csv
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.loggers import Logger

from tercet.checkpoint.metrics import COLUMNS, read_metrics
from tercet.storage import report_write_errors


class MetricsLogger(Logger):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._columns: list[str] = []

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        return

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        new = not self.path.exists()
        self._columns = self._columns or ([*COLUMNS] if new else self._read_columns())
        with report_write_errors(self.path), self.path.open("a", newline="", encoding="utf-8") as file:
            writer: csv.DictWriter[str] = csv.DictWriter(file, self._columns, extrasaction="ignore")
            if new:
                writer.writeheader()
            cells = {
                name: str(x) if isinstance(x, int) else f"{x:.9g}" for name, x in metrics.items()
            }  # counts exactly
            writer.writerow({"step": step, **cells})

    def _read_columns(self) -> list[str]:
        """Those of the file, which may be a run's that an earlier version began."""
        with self.path.open(newline="", encoding="utf-8") as file:
            return next(csv.reader(file), [*COLUMNS])

    def seconds_spent(self) -> float:
        """Seconds of training behind the last line: a resumed run counts on from there."""
        seconds = read_metrics(self.path)["seconds"] if self.path.exists() else []
        return seconds[-1][1] if seconds else 0.0

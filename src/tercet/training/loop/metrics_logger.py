"""Logger that writes `metrics.csv`: one line per logged step, written immediately.

When a run is resumed, `restore_metrics` first restores the lines up to the checkpoint, so that the file ends like that
of an uninterrupted run. Lightning's own CSV logger starts a new file in each process.
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
    """Lightning logger that appends metrics to a CSV file on rank 0.

    Args:
        path: Path of the file, which is created with the columns `COLUMNS` if it does not exist.
    """

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
            }  # integers without rounding
            writer.writerow({"step": step, **cells})

    def _read_columns(self) -> list[str]:
        """Return the columns of the file, which may differ from `COLUMNS` if an earlier version created it."""
        with self.path.open(newline="", encoding="utf-8") as file:
            return next(csv.reader(file), [*COLUMNS])

    def seconds_spent(self) -> float:
        """Return the seconds of training up to the last line (0 without one), at which a resumed run continues."""
        seconds = read_metrics(self.path)["seconds"] if self.path.exists() else []
        return seconds[-1][1] if seconds else 0.0

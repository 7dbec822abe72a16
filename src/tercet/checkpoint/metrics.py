"""Reading of `metrics.csv`, the metrics of a run's training, with one line per logged step.

A cell is empty if its metric was not measured at that step. Files of older runs may lack columns.
"""

import errno
import math
import os
import statistics
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tercet.checkpoint.run_record import read_record
from tercet.config import UserError
from tercet.limits import METRICS_BYTES, METRICS_COLUMNS
from tercet.reading.files import check_regular_file, open_without_waiting

Columns = dict[str, list[tuple[int, float]]]

COLUMNS = (
    "step", "epoch", "train/loss", "train/nll", "val/loss", "val/objective", "val/bleu", "val/accuracy", "val/f1",
    "val/rmse", "val/pearson", "val/spearman", "val/recall_at_1", "val/recall_at_10", "val/mrr", "val/ndcg_at_10",
    "val/unigram_entropy", "lr", "grad_norm", "tokens", "tokens_per_second", "seconds",
)  # fmt: skip
BLOCK = 16 << 20  # bytes parsed at a time
OVERLAP = 64  # last bytes read; if they have changed, the file was rewritten
X_AXES = ("step", "tokens", "seconds")


class MetricsFile:
    """The columns of a growing metrics.csv. Empty cells are NaN.

    The first `refresh` reads the whole file, each further one only the appended lines. If the file was rewritten, it is
    read again from the beginning: a resumed run truncates its file to the last checkpoint.

    Attributes:
        path: Path of the file.
        generation: Number of times that the file was read from its beginning; 0 if it was never found.
        unreadable: Number of invalid lines, which are skipped.
        first_unreadable: Line number of the first invalid line (the header is line 1); None if there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        self._forget()

    def _forget(self) -> None:
        self.unreadable = 0
        self.first_unreadable: int | None = None
        self._names: list[str] = []
        self._table = np.empty((0, 0))
        self._rows = self._read = 0
        self._inode: int | None = None
        self._end = b""

    def __len__(self) -> int:
        return self._rows

    @property
    def names(self) -> list[str]:
        """Names of the columns, in the order of the file; empty before the header is read."""
        return self._names

    def column(self, name: str) -> np.ndarray:
        """Return a column as (N,) float64, one number per logged step; NaN if the file has no such column."""
        if name not in self._names:
            return np.full(self._rows, np.nan)
        return self._table[: self._rows, self._names.index(name)]

    def points(self, name: str) -> np.ndarray:
        """Return the steps and values of a column as (N, 2) float64, without values that are not finite."""
        points = np.column_stack((self.column("step"), self.column(name)))
        return points[np.isfinite(points).all(1)]

    def columns(self) -> Columns:
        """Return each column except "step" as pairs of step and value, without NaN.

        Known columns (`COLUMNS`) that the file lacks are empty.
        """
        columns: Columns = {name: [] for name in COLUMNS[1:]}
        steps = self.column("step")
        for name in self._names:
            values = self.column(name)
            has_value = np.isfinite(steps) & ~np.isnan(values)
            if name != "step":
                columns[name] = list(zip(map(int, steps[has_value].tolist()), values[has_value].tolist(), strict=True))
        return columns

    def axis(self, name: str) -> np.ndarray:
        """Return the x coordinate of each logged step as (N,) float64.

        Args:
            name: "step", or "tokens" or "seconds" for the tokens or seconds of training up to each step.

        Returns:
            Values that never decrease. Those that were not logged are interpolated; all are NaN if none was logged.
        """
        steps, values = self.column("step"), self.column(name)
        has_value = np.isfinite(values)
        if name != "step" and not has_value.any():
            return np.full(self._rows, np.nan)
        return np.maximum.accumulate(np.interp(steps, steps[has_value], values[has_value])) if self._rows else steps

    def refresh(self) -> None:
        """Read the appended lines. A missing file has no rows.

        Raises:
            UserError: If the file is not a regular file, is larger than `METRICS_BYTES`, cannot be read, or has no
                column "step".
        """
        try:
            check_regular_file(self.path, METRICS_BYTES) if self.path.exists() else None
            with open(self.path, "rb", opener=open_without_waiting) as file:
                status = os.fstat(file.fileno())
                if self._is_another(file, status):
                    self._forget()
                    self.generation += 1
                    self._inode = status.st_ino
                file.seek(self._read)
                rest = b""
                while block := file.read(BLOCK):
                    whole, newline, rest = (rest + block).rpartition(b"\n")  # the last line may be incomplete
                    self._take(whole + newline)
        except FileNotFoundError:
            self._forget()
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from None

    def _is_another(self, file: object, status: os.stat_result) -> bool:
        if self._inode != status.st_ino or status.st_size < self._read:
            return True
        file.seek(self._read - len(self._end))  # type: ignore[attr-defined]
        return file.read(len(self._end)) != self._end  # type: ignore[attr-defined]

    def _take(self, lines: bytes) -> None:
        if not lines:
            return
        self._read += len(lines)
        self._end = (self._end + lines)[-OVERLAP:]
        text = lines
        if not self._names:
            head, _, text = text.partition(b"\n")
            self._names = head.rstrip(b"\r").decode(errors="replace").split(",")[:METRICS_COLUMNS]
            if "step" not in self._names:
                self._forget()  # so that the next refresh reads the file from its beginning
                raise _not_written_by_a_run(self.path, 1)
            self._table = np.empty((0, len(self._names)))
        if text:
            self._append(self._parse(text))

    def _append(self, new: np.ndarray) -> None:
        if self._rows + len(new) > len(self._table):
            table = np.empty((max(1024, 2 * len(self._table), self._rows + len(new)), len(self._names)))
            table[: self._rows] = self._table[: self._rows]
            self._table = table
        self._table[self._rows : self._rows + len(new)] = new
        self._rows += len(new)

    def _parse(self, text: bytes) -> np.ndarray:
        """Return complete lines as (rows, columns), parsed at once, or one by one if any of them is invalid."""
        width, step = len(self._names), self._names.index("step")
        text = text.replace(b"\r\n", b"\n")
        nan_text = text.replace(b",,", b",nan,").replace(b",,", b",nan,").replace(b",\n", b",nan\n")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)  # numpy warns if a cell is not a number
                cells = np.fromstring(nan_text.replace(b"\n", b","), sep=",")
            table = cells.reshape(-1, width)
            previous_step = self._table[self._rows - 1, step] if self._rows else -1
            if len(table) == text.count(b"\n") and (np.diff(table[:, step], prepend=previous_step) >= 0).all():
                return table
        except (ValueError, DeprecationWarning):
            pass
        return self._parse_lines(nan_text.splitlines(), width, step)

    def _parse_lines(self, lines: list[bytes], width: int, step: int) -> np.ndarray:
        rows = list[list[float]]()
        last = float(self._table[self._rows - 1, step]) if self._rows else -1.0
        for line in lines:
            try:
                row = [float(cell) for cell in line.split(b",")]
            except ValueError:
                row = []
            if len(row) == width and last <= row[step] < 1e15:
                rows.append(row)
                last = row[step]
            else:
                self.first_unreadable = self.first_unreadable or 2 + self._rows + len(rows) + self.unreadable
                self.unreadable += 1
        return np.array(rows).reshape(-1, width)


def read_metrics(path: Path) -> Columns:
    """Return each column of a metrics.csv except "step" as pairs of step and value, without empty cells.

    Raises:
        UserError: If the file cannot be read, contains an invalid line, or does not match its hash in run.json.
    """
    record = read_record(path.parent)
    if record is not None:
        record.check_file(path.parent, path.name)
    file = MetricsFile(path)
    file.refresh()
    if not file.generation:
        raise UserError(f"cannot read {path}: {os.strerror(errno.ENOENT)}")
    if file.first_unreadable is not None:
        raise _not_written_by_a_run(path, file.first_unreadable)
    return file.columns()


def _not_written_by_a_run(path: Path, line: int) -> UserError:
    return UserError(f"{path} line {line}: invalid line of metrics; put back the file that the run wrote")


def to_history(columns: Columns) -> dict[str, list[float]]:
    """Convert the result of `read_metrics` to columns of equal length, for example for `pandas.DataFrame`.

    There is one row per step with a value. "step" is the first column, missing values are NaN, and columns without
    values are left out.
    """
    steps = sorted({step for points in columns.values() for step, _ in points})
    history: dict[str, list[float]] = {"step": [*steps]}
    for name, points in columns.items():
        if points:
            values = dict(points)
            history[name] = [values.get(step, math.nan) for step in steps]
    return history


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """Duration and speed of a run's training.

    Attributes:
        seconds: Seconds up to the last logged step, over all sessions and including validation, without steps that a
            killed session had taken after its last save.
        tokens_per_second: Median of the logged tokens per second; None if none were logged.
        steps: Number of steps up to the last logged time.
        tokens: Number of training tokens up to the last logged step; None if not logged.
    """

    seconds: float
    tokens_per_second: float | None
    steps: int
    tokens: int | None


def training_time(columns: Columns) -> TrainingTime | None:
    """Return the training time from the result of `read_metrics`; None if no time was logged."""
    if not columns["seconds"]:
        return None
    steps, seconds = columns["seconds"][-1]
    rates = [rate for _, rate in columns["tokens_per_second"]]
    tokens = columns["tokens"]
    return TrainingTime(
        seconds=seconds,
        tokens_per_second=statistics.median(rates) if rates else None,
        steps=steps,
        tokens=int(tokens[-1][1]) if tokens else None,
    )

"""A run's `metrics.csv` as it grows: what was read is kept, and only what was appended is read.

A run that is resumed cuts its file back to its checkpoint; then all is read anew, and `generation` says so.
"""

import os
import warnings
from pathlib import Path

import numpy as np

from tercet.config import UserError
from tercet.limits import METRICS_BYTES, METRICS_COLUMNS
from tercet.reading.files import check_regular_file, open_without_waiting

BLOCK = 16 << 20  # bytes that are parsed at a time
OVERLAP = 64  # bytes before the end, by which a file that was written anew is known
X_AXES = ("step", "tokens", "seconds")


class MetricsTail:
    """What a metrics.csv holds so far, a column at a time; a cell that is empty is NaN.

    Attributes:
        generation: how often the file was read from its beginning.
        unreadable: lines that are none of a run's, and were left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = self.unreadable = 0
        self._forget()

    def _forget(self) -> None:
        self._names: list[str] = []
        self._table = np.empty((0, 0))
        self._rows = self._read = 0
        self._inode: int | None = None
        self._end = b""

    def __len__(self) -> int:
        return self._rows

    @property
    def names(self) -> list[str]:
        """Of the columns, "step" first."""
        return self._names

    def column(self, name: str) -> np.ndarray:
        """(N) float64, a row a logged step."""
        if name not in self._names:
            return np.full(self._rows, np.nan)
        return self._table[: self._rows, self._names.index(name)]

    def axis(self, name: str) -> np.ndarray:
        """(N) the steps, or the tokens or seconds until each, never falling; NaN where none were noted."""
        steps, values = self.column("step"), self.column(name)
        known = np.isfinite(values)
        if name != "step" and not known.any():
            return np.full(self._rows, np.nan)
        return np.maximum.accumulate(np.interp(steps, steps[known], values[known])) if self._rows else steps

    def refresh(self) -> None:
        """Read what was appended. A file that is not there has no rows.

        Raises:
            UserError: for what is no regular file, is too large or cannot be read.
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
                    whole, newline, rest = (rest + block).rpartition(b"\n")  # the last line may be half-written
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
                raise UserError(f"{self.path} line 1: not what a run writes; put back the file of the run")
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
        """(rows, columns) of whole lines: at once, or line by line where one is none of a run's."""
        width, step = len(self._names), self._names.index("step")
        ending = b"\r\n" if text.endswith(b"\r\n") else b"\n"
        filled = text.replace(b",,", b",nan,").replace(b",,", b",nan,").replace(b"," + ending, b",nan" + ending)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)  # how numpy says that something is no number
                cells = np.fromstring(filled.replace(ending, b","), sep=",")
            table = cells.reshape(-1, width)
            before = self._table[self._rows - 1, step] if self._rows else -1
            if len(table) == text.count(b"\n") and (np.diff(table[:, step], prepend=before) >= 0).all():
                return table
        except (ValueError, DeprecationWarning):
            pass
        return self._parse_lines(filled.splitlines(), width, step)

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
                self.unreadable += 1
        return np.array(rows).reshape(-1, width)

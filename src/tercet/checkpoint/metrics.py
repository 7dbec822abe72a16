"""What a run noted of its training: `metrics.csv`, a line a logged step, read by column.

A cell is empty where nothing was measured at that step; a column is missing where an older run did not know of it.
"""

import csv
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from tercet.checkpoint.run_record import check_run_links, read_record
from tercet.config import UserError

Columns = dict[str, list[tuple[int, float]]]

METRICS = "metrics.csv"
COLUMNS = (
    "step", "epoch", "train/loss", "train/nll", "val/loss", "val/bleu", "val/accuracy", "val/f1",
    "val/rmse", "val/pearson", "val/spearman", "val/unigram_entropy", "lr", "grad_norm", "tokens", "tokens_per_second",
    "seconds",
)  # fmt: skip


def read_metrics(path: Path) -> Columns:
    """Each column of a metrics.csv as (step, value) pairs, without the empty cells.

    Raises:
        UserError: for a file that cannot be read or is none of ours, with the line; or that is not what the run beside
            it has written.
    """
    record = read_record(path.parent)
    if record is not None:
        record.check_file(path.parent, path.name)
    columns: Columns = {name: [] for name in COLUMNS[1:]}
    line = 1
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in (reader := csv.DictReader(file)):
                line = reader.line_num
                step = int(row["step"])
                for name, cell in row.items():
                    if name != "step" and cell:
                        columns.setdefault(name, []).append((step, float(cell)))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, csv.Error):
        raise UserError(f"{path} line {line}: not what a run writes; put back the file of the run") from None
    return columns


def find_metrics(folder: Path) -> Path | None:
    """The metrics.csv of a run, given its folder or that of its best or last model; None where there is none.

    Raises:
        UserError: As `check_run_links`.
    """
    places = [folder, folder.parent] if folder.name in ("best", "last") else [folder]
    for place in places:
        check_run_links(place)
    return next((place / METRICS for place in places if (place / METRICS).is_file()), None)


def as_history(columns: Columns) -> dict[str, list[float]]:
    """Columns of one length, a row a logged step: "step" first, NaN where nothing was measured, and no column that was
    never measured. `pandas.DataFrame` takes it as it is."""
    steps = sorted({step for points in columns.values() for step, _ in points})
    history: dict[str, list[float]] = {"step": [*steps]}
    for name, points in columns.items():
        if points:
            at = dict(points)
            history[name] = [at.get(step, math.nan) for step in steps]
    return history


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """Attributes:
    seconds: up to the last step that was logged, validation included; over all sessions, without steps that a killed
        one had taken after its last save.
    tokens_per_second: the median of the logged stretches; None where there is one at most.
    steps, tokens: done, and read.
    """

    seconds: float
    tokens_per_second: float | None
    steps: int
    tokens: int | None


def training_time(columns: Columns) -> TrainingTime | None:
    """What a run's training took, by its metrics.csv; None where no time was noted."""
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

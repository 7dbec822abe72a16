"""What a run noted of its training: `metrics.csv`, a line a logged step, read by column.

A cell is empty where nothing was measured at that step; a column is missing where an older run did not know of it.
"""

import csv
from pathlib import Path

from tercet.config import UserError

Columns = dict[str, list[tuple[int, float]]]

COLUMNS = (
    "step", "epoch", "train/loss", "train/nll", "val/loss", "val/bleu", "val/accuracy", "val/f1",
    "val/unigram_entropy", "lr", "grad_norm", "tokens", "tokens_per_second", "seconds",
)  # fmt: skip


def read_metrics(path: Path) -> Columns:
    """Each column of a metrics.csv as (step, value) pairs, without the empty cells.

    Raises:
        UserError: for a file that cannot be read or is none of ours, with the line.
    """
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

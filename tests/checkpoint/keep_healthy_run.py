"""Keep the metrics of a healthy run for `test_training_problems.py`, with the columns that the checks read.

Usage: python tests/checkpoint/keep_healthy_run.py RUN NAME
"""

import csv
import json
import sys
from pathlib import Path

from tercet.checkpoint import load_model
from tercet.checkpoint.run_folder import RunFolder

FOLDER = Path(__file__).parent / "healthy_runs"
HEALTHY_RUNS = sorted(FOLDER.glob("*.csv"))
KEPT = ("step", "train/loss", "train/nll", "val/loss", "val/unigram_entropy", "tokens")


def keep(run_folder: Path, name: str) -> None:
    """Write the metrics of a run to `healthy_runs/NAME.csv` and the settings of its checks to `NAME.json`."""
    run = RunFolder(run_folder)
    run.metrics.refresh()
    recipe, total_steps = run.recipe(), run.total_steps(run.record())
    best_by = recipe["task"].get("best_by", "loss")
    model = load_model(run_folder).model
    kept = {*KEPT, f"val/{best_by}"}
    columns = {column: dict(points) for column, points in run.metrics.columns().items() if column in kept}
    with (FOLDER / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *columns])
        for step in sorted({step for points in columns.values() for step in points}):
            cells = (points.get(step) for points in columns.values())
            writer.writerow([step, *("" if value is None else f"{value:.5g}" for value in cells)])
    facts = {
        "warmup_steps": recipe["training"].get("warmup_steps") or 0,
        "total_steps": total_steps,
        "best_by": best_by,
        "parameters": None if recipe.get("pretrained") else sum(weight.numel() for weight in model.parameters()),
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.argv[2])

"""Run folders created without training."""

import json
import math
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from tercet.checkpoint.metrics import COLUMNS
from tercet.checkpoint.run_record import RunRecord

HOSTILE = "<script>document.title='gone'</script><b>bold</b> & \u202e text"


def line(step: int, *, loss: float | None = None, validate: bool = False) -> str:
    """Return a line of metrics.csv as `MetricsLogger` writes it, with a spike at step 777."""
    cells = {
        "step": str(step), "epoch": f"{step / 1000:.9g}", "lr": f"{1e-3 / step:.9g}", "grad_norm": "0.5",
        "train/loss": f"{(50 if step == 777 else 2 + 1 / step) if loss is None else loss:.9g}",
        "tokens": str(step * 4096), "tokens_per_second": "51234.5", "seconds": f"{step * 0.1:.9g}",
        "val/loss": f"{2.1 + 1 / step:.9g}" if validate else "",
    }  # fmt: skip
    return ",".join(cells.get(name, "") for name in COLUMNS) + "\r\n"


def write_metrics(path: Path, steps: Iterable[int], *, validation_interval: int = 100) -> None:
    head = "" if path.exists() else ",".join(COLUMNS) + "\r\n"
    with path.open("a", newline="") as file:
        file.write(head + "".join(line(step, validate=step % validation_interval == 0) for step in steps))


def make_run(
    folder: Path,
    *,
    steps: int,
    total: int | None = None,
    finished: bool = False,
    lr: float = 0.001,
    pid: int | None = 0,
) -> Path:
    """Create a run folder.

    Args:
        pid: Process that trains: 0 for this process, None for no process.
    """
    (folder / "samples").mkdir(parents=True)
    write_metrics(folder / "metrics.csv", range(1, steps + 1))
    total = total or steps
    recipe = f"task: {{kind: language}}\ntraining: {{max_steps: {total}, optimizer: {{kind: adamw, lr: {lr}}}}}\n"
    (folder / "recipe.yaml").write_text(recipe)
    RunRecord(
        data="d", tokenizer="t", precision="fp32", matmul="highest", compile="never", steps=total, finished=finished
    ).write(folder)
    if pid is not None:
        owner = {"host": socket.gethostname(), "pid": pid or os.getpid(), "since": "today"}
        (folder / ".owner.json").write_text(json.dumps(owner))
    for step in (math.ceil(steps / 2), steps):
        (folder / "samples" / f"step-{step:06d}.txt").write_text(f"after {step}: {HOSTILE}")
    return folder

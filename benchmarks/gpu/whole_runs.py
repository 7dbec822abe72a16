"""Whole runs on a GPU, each in a separate process: the time that a user waits, including startup, data and compiling.

    python -m benchmarks.gpu.whole_runs --nanogpt PATH --out DIR [--budget S]

    step-124m    tokens per second of `tercet train` with GPT-2's small shape, 12 rows of 1,024, compiled; the median
                 of the last half of its steps, to be compared with the row gpt-124m
    time-to-loss seconds from the start of a process to the first validation loss of at most 1.4697 nats, of `tercet
                 train nanogpt-gpu` and of nanoGPT's `train.py config/train_shakespeare_char.py`

nanoGPT validates on 200 random batches, Tercet on the whole validation part; both every 250 steps. Results are written
to runs.json as they become available, and runs with a result are not repeated.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tercet.checkpoint.metrics import read_metrics

GOAL = 1.4697  # nats per character, from nanoGPT's README
THEIRS = re.compile(r"val loss (\d+\.\d+)")
BASE = {
    "model.max_len": 1024, "model.pad_vocab_to": 50304, "model.stack.n_layers": 12, "model.stack.n_heads": 12,
    "model.stack.d_model": 768, "task.batch_size": 12, "task.micro_batch_size": 12, "training.validate_every": 100_000,
    "training.save_every": 100_000, "training.compile": "always", "task.sample_tokens": 0,
    **{f"model.stack.dropout.{part}": 0 for part in ("embedding", "attention", "residual")},
}  # fmt: skip
TINY = {
    "model.max_len": 16, "model.stack.n_layers": 1, "model.stack.n_heads": 2, "model.stack.d_model": 16,
    "task.batch_size": 4, "task.micro_batch_size": 4, "task.sample_tokens": 0,
}  # fmt: skip
THEIRS_TINY = (
    "--device=cpu", "--compile=False", "--eval_iters=1", "--batch_size=2", "--block_size=16", "--n_layer=1",
    "--n_head=2", "--n_embd=16", "--max_iters=2",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of the runs.

    Args:
        nanogpt: Checkout that contains the ids of Shakespeare's characters.
        folder: Folder of the runs.
        goal: Validation loss to reach.
        seconds: Maximum duration of a run.
        tiny: If True, run a few steps of tiny models, on any device.
    """

    nanogpt: Path | None
    folder: Path
    goal: float
    seconds: float
    tiny: bool


class RunFailed(Exception):
    """A run ended, or was stopped, without a result."""


@contextmanager
def process(command: Sequence[str], seconds: float, log: Path, cwd: Path | None = None) -> Iterator[Callable[[], bool]]:
    """Run a command with its output in a file, and yield a function that returns whether it is still running.

    Raises:
        RunFailed: If it runs for longer than `seconds`, or ends with an error.
    """
    end = time.monotonic() + seconds
    with log.open("w") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=cwd)

    def runs() -> bool:
        code = child.poll()
        if code:
            lines = log.read_text().strip().splitlines() or [""]
            raise RunFailed(f"exit code {code}: {lines[-1][:200]}")
        if code is None and time.monotonic() > end:
            raise RunFailed(f"no figure within {seconds:.0f} s")
        return code is None

    try:
        yield runs
    finally:
        child.kill()
        child.wait()


def train_command(folder: Path, changes: dict[str, Any]) -> list[str]:
    sets = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "tercet", "train", "nanogpt-gpu", "--quiet", "--out", str(folder), *sets]


def step_124m(options: RunOptions) -> dict[str, Any]:
    steps = 20 if options.tiny else 200
    folder = options.folder / "step-124m"
    changes = {**(TINY if options.tiny else BASE), "training.max_steps": steps, "training.log_every": steps // 20}
    with process(train_command(folder, changes), options.seconds, folder.with_suffix(".log")) as runs:
        while runs():
            time.sleep(0.05)
    speeds = [value for step, value in read_metrics(folder / "metrics.csv")["tokens_per_second"] if step > steps / 2]
    return {"tokens_per_second": statistics.median(speeds), "steps": steps}


def ours_to_loss(options: RunOptions) -> dict[str, Any]:
    folder, start = options.folder / "ours", time.monotonic()
    changes = {**TINY, "training.max_steps": 4, "training.validate_every": 2} if options.tiny else {}
    with process(train_command(folder, changes), options.seconds, folder.with_suffix(".log")) as runs:
        while runs() or not (folder / "last").exists():
            if (folder / "metrics.csv").exists():
                for step, loss in read_metrics(folder / "metrics.csv").get("val/loss", []):
                    if loss <= options.goal:
                        return {"seconds": time.monotonic() - start, "step": step, "loss": loss}
            time.sleep(0.05)
    raise RunFailed(f"its validation losses stayed above {options.goal}")


def theirs_to_loss(options: RunOptions) -> dict[str, Any]:
    if options.nanogpt is None:
        raise RunFailed("give --nanogpt the folder of a checkout")
    log, start = options.folder / "nanogpt.log", time.monotonic()
    words = ["train.py", "config/train_shakespeare_char.py", f"--out_dir={options.folder.absolute() / 'nanogpt'}"]
    command = [sys.executable, "-u", *words, *(THEIRS_TINY if options.tiny else ())]
    with process(command, options.seconds, log.absolute(), cwd=options.nanogpt) as runs:
        running = True
        while running:
            running = runs()
            for number, loss in enumerate(map(float, THEIRS.findall(log.read_text()))):
                if loss <= options.goal:
                    return {"seconds": time.monotonic() - start, "step": 250 * number, "loss": loss}
            time.sleep(0.05)
    raise RunFailed(f"its validation losses stayed above {options.goal}")


RUNS: dict[str, Callable[[RunOptions], dict[str, Any]]] = {
    "step-124m": step_124m,
    "time-to-loss, tercet": ours_to_loss,
    "time-to-loss, nanoGPT": theirs_to_loss,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", metavar="PATH", type=Path, help="a checkout with Shakespeare's ids")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True)
    parser.add_argument("--budget", metavar="S", type=float, default=600.0, help="seconds of all runs (default: 600)")
    parser.add_argument("--goal", metavar="NATS", type=float, default=GOAL, help=f"default: {GOAL}")
    parser.add_argument("--tiny", action="store_true", help="a few steps of tiny models, to check the program")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    results_path, end = args.out / "runs.json", time.monotonic() + args.budget
    results: dict[str, dict[str, Any]] = json.loads(results_path.read_text()) if results_path.is_file() else {}
    for name, run in RUNS.items():
        if "missed" not in results.get(name, {"missed": ""}):
            continue
        left = end - time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tercet-runs-") as temporary:
            options = RunOptions(
                nanogpt=args.nanogpt and args.nanogpt.absolute(), folder=Path(temporary), goal=args.goal, seconds=left,
                tiny=args.tiny,
            )  # fmt: skip
            try:
                results[name] = run(options) if left > 0 else {"missed": "the time was used up"}
            except RunFailed as error:
                results[name] = {"missed": str(error)}
        print(f"{name}: {json.dumps(results[name])}", flush=True)
        results_path.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())

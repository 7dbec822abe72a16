"""Check that a run of several ranks is bitwise identical after a given number of SIGKILLs at random moments.

    python benchmarks/load/rank_kills.py [--kills 100] [--seed 1]

A small GPT, `training.exact`, a checkpoint every second step. Each start of the same run is on another simulated
machine: one rank, or two or four ranks under torchrun, replicated or sharded. At a random moment after the first step
of a start, either one rank is killed, and the others and torchrun must end on their own, or all processes are killed at
once, as in a power failure. A kill counts if training had started. A run that finishes is followed by another one; the
weights of each are compared with those of an uninterrupted run on one rank.
"""

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tercet.checkpoint.metrics import read_metrics
from tercet.settings_yaml import write_yaml
from tercet.storage import FileHash

MACHINES: dict[str, tuple[int, str]] = {
    "one rank": (1, "single"),
    "ddp on 2": (2, "ddp"),
    "fsdp on 2": (2, "fsdp"),
    "ddp on 4": (4, "ddp"),
    "fsdp on 4": (4, "fsdp"),
}
RECIPE: dict[str, Any] = {
    "task": {"kind": "language", "batch_size": 16, "micro_batch_size": 4, "sample_tokens": 0},
    "data": {"source": "text.txt", "validation": {"kind": "tail", "fraction": 0.1}, "tokenizer": "characters"},
    "model": {"preset": "gpt2", "max_len": 32, "stack": {"d_model": 64, "n_layers": 2, "n_heads": 2}},
    "training": {
        "max_steps": 1200, "precision": "fp32", "compile": "never", "accelerator": "cpu", "exact": True,
        "validate_every": 100, "save_every": 2, "log_every": 1,
    },
}  # fmt: skip
LATEST = 2.0  # maximum seconds between a start's first step and the kill
ENDS = 120.0  # seconds within which the other ranks must have ended
POLL = 0.01


@dataclass
class Summary:
    """Counts of a whole benchmark.

    Attributes:
        seconds: Times from the death of one rank to the end of all processes, if only one was killed.
    """

    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter[str])
    single_kills: int = 0
    kills_in_save: int = 0
    damaged_checkpoints: int = 0
    repeated_steps: int = 0
    seconds: list[float] = field(default_factory=list[float])
    equal: int = 0
    runs: int = 0

    def show(self) -> str:
        machine_counts = ", ".join(f"{name} {self.kills[name]}" for name in MACHINES)
        ends = f"{statistics.median(self.seconds):.1f} s, {max(self.seconds):.1f} s at most" if self.seconds else "none"
        return "\n".join([
            f"kills          {self.kills.total()} in {self.starts} starts: {machine_counts}",
            f"of one rank    {self.single_kills}; the others and the launcher ended after {ends}",
            f"in a save      {self.kills_in_save}; damaged checkpoints passed over: {self.damaged_checkpoints}",
            f"done again     {self.repeated_steps} steps",
            f"equal          {self.equal} of {self.runs} runs have the unbroken run's weights to the last bit",
        ])  # fmt: skip


def launch(recipe: Path, out: Path, machine: str, log: Path) -> "subprocess.Popen[bytes]":
    """Start or resume the run."""
    ranks, strategy = MACHINES[machine]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    settings = ["--set", f"training.strategy={strategy}", "--set", f"training.devices={ranks}"]
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *launcher, "-m", "tercet", "train", str(recipe), "--out", str(out), *settings],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=recipe.parent,
            stdout=file,
            stderr=file,
        )


def last_step(run: Path) -> int:
    """Return the last step in `metrics.csv`, which is appended to while it is read, or 0."""
    with suppress(FileNotFoundError, IndexError, ValueError):
        return int((run / "metrics.csv").read_bytes().splitlines()[-1].split(b",")[0])
    return 0


def start_step(log: Path) -> int | None:
    """Return the last step of the checkpoint that a start resumes, once it has reported it."""
    match = re.search(rb"resuming at step ([\d,]+) of", log.read_bytes())
    return None if match is None else int(match[1].replace(b",", b"")) - 1


def wait_for_training(training: "subprocess.Popen[bytes]", run: Path, log: Path, *, new: bool) -> None:
    """Wait until a step of this start is done, or the start has ended."""
    while training.poll() is None:
        begin = 0 if new else start_step(log)
        if begin is not None and last_step(run) > begin:
            return
        time.sleep(POLL)


def kill(training: "subprocess.Popen[bytes]", chance: random.Random, *, one_rank: bool) -> None:
    """Kill one rank, or the launcher and all ranks."""
    launcher = psutil.Process(training.pid)
    ranks = launcher.children(recursive=True)
    for process in [chance.choice(ranks)] if one_rank else [launcher, *ranks]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def unfinished_files(run: Path) -> set[Path]:
    """Return the files that were being written when their process was killed."""
    return {*run.glob(".*.new"), *run.glob("checkpoints/.*.new")}


def weights(run: Path) -> dict[str, str]:
    return {folder: FileHash.from_path(run / folder / "model.safetensors").xxh3 for folder in ("last", "best")}


def train_until_killed(
    recipe: Path, out: Path, log: Path, machine: str, chance: random.Random, summary: Summary
) -> bool:
    """Start the run, kill it at a random moment, and return whether it had finished before."""
    new = not (out / "checkpoints").is_dir() or not any((out / "checkpoints").glob("step-*"))
    files_before = unfinished_files(out)
    training = launch(recipe, out, machine, log)
    summary.starts += 1
    wait_for_training(training, out, log, new=new)
    with suppress(subprocess.TimeoutExpired):
        training.wait(chance.uniform(0, LATEST))
    if training.poll() is None:
        one_rank = MACHINES[machine][0] > 1 and chance.random() < 0.5
        kill(training, chance, one_rank=one_rank)
        kill_time = time.monotonic()
        training.wait(ENDS)
        summary.kills[machine] += 1
        if one_rank:
            summary.single_kills += 1
            summary.seconds.append(time.monotonic() - kill_time)
        summary.kills_in_save += bool(unfinished_files(out) - files_before)
    elif training.returncode != 0:
        sys.exit(f"{machine} ended on its own with exit code {training.returncode}: {log.read_text()[-3000:]}")
    summary.damaged_checkpoints += len(
        re.findall(rb"; (?:resuming from the checkpoint|using the weights|starting again at step 1)", log.read_bytes())
    )
    return training.returncode == 0


def count_repeated(log: Path, last: int, *, new: bool) -> int:
    """Return the number of steps of the previous start that this start has to repeat."""
    begin = 0 if new else start_step(log)
    return 0 if begin is None else max(0, last - begin)


def finish(recipe: Path, out: Path, log: Path, machine: str = "one rank") -> None:
    if launch(recipe, out, machine, log).wait() != 0:
        sys.exit(log.read_text()[-3000:])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    chance, summary = random.Random(args.seed), Summary()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = random.Random(args.seed)
        (folder / "text.txt").write_text(
            "".join(f"{n} times {m} is {n * m}.\n" for n, m in (text.choices(range(100), k=2) for _ in range(4000)))
        )
        recipe, log, whole = folder / "recipe.yaml", folder / "log", folder / "whole"
        recipe.write_text(write_yaml(RECIPE))
        finish(recipe, whole, log)
        while summary.kills.total() < args.kills:
            out, is_finished = folder / f"run {summary.runs}", False
            while not is_finished and summary.kills.total() < args.kills:
                last = last_step(out)
                machine = chance.choice([*MACHINES])
                is_finished = train_until_killed(recipe, out, log, machine, chance, summary)
                summary.repeated_steps += count_repeated(log, last, new=last == 0)
                print(f"{summary.kills.total()} kills, step {last_step(out)}, {machine}", file=sys.stderr, flush=True)
            if not is_finished:
                finish(recipe, out, log)
            summary.runs += 1
            same_losses = (
                read_metrics(out / "metrics.csv")["val/loss"] == read_metrics(whole / "metrics.csv")["val/loss"]
            )
            summary.equal += same_losses and weights(out) == weights(whole)
    print(summary.show())


if __name__ == "__main__":
    main()

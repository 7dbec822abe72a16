"""A run on one rank or several, whole or sharded: each start is a command of its own, which may be killed."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from tiny_runs import MUON, TINY

from tercet.settings_yaml import write_yaml

PROGRAM = Path(__file__).with_name("train_one.py")
MACHINES: dict[str, dict[str, Any]] = {
    "one rank": {"devices": 1, "strategy": "single"},
    "ddp on 2": {"devices": 2, "strategy": "ddp"},
    "fsdp on 2": {"devices": 2, "strategy": "fsdp"},
    "fsdp on 2, kept": {"devices": 2, "strategy": "fsdp", "reshard_after_forward": False},
    "ddp on 4": {"devices": 4, "strategy": "ddp"},
    "fsdp on 4": {"devices": 4, "strategy": "fsdp"},
}
NOT_EXACT: dict[str, dict[str, Any]] = {"tp on 2": {"devices": 2, "strategy": "tp"}}
FAMILIES: dict[str, dict[str, Any]] = {
    "text": {"optimizer": MUON},
    "masked": {"best_by": "loss"},
    "pairs": {"ema": None, "best_by": "loss", "validation_sentences": 0, "batch_tokens": 256},
}


CHANGES: dict[str, dict[str, Any]] = {"text": {"model": {"stack": {"n_layers": 2}}}}  # of the recipe's parts


def start(
    folder: Path, family: str, machine: str, out: Path, *, changes: dict[str, Any] | None = None, **settings: Any
) -> "subprocess.Popen[str]":
    """Begin the family's run in `out`, or go on with it, on this machine; `changes` are in place of CHANGES."""
    settings = {"exact": True, **FAMILIES[family], **(MACHINES | NOT_EXACT)[machine], **settings}
    recipe = TINY[family](folder, changes or CHANGES.get(family), **settings)
    path = folder / f"{machine}.yaml"
    path.write_text(write_yaml(recipe))
    ranks = recipe.training.devices
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return subprocess.Popen(
        [sys.executable, *launcher, str(PROGRAM), str(path), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_ranks(program: Path, folder: Path, world: int, *, timeout: float) -> list[dict[str, Any]]:
    """What each of `world` ranks of a program has written into `folder`, which it is told."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    done = subprocess.run(
        [*command, str(program), str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


def kill(started: "subprocess.Popen[str]") -> None:
    """All its processes at once, as when the power goes."""
    torchrun = psutil.Process(started.pid)
    for process in (*torchrun.children(recursive=True), torchrun):  # whose ranks are no process group with it
        with suppress(psutil.NoSuchProcess):
            process.kill()
    started.communicate()


def finish(started: "subprocess.Popen[str]") -> None:
    _, errors = started.communicate(timeout=150)
    assert started.returncode == 0, errors[:2000] + "\n...\n" + errors[-2000:]

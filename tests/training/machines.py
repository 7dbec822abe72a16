"""Runs on one rank or several, replicated or sharded. Ranks are forks of this process, so that they import nothing."""

import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only
from tiny_runs import MUON, TINY, child

from tercet.training import Recipe, train

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
CHANGES: dict[str, dict[str, Any]] = {"text": {"model": {"stack": {"n_layers": 2}}}}  # of parts of the recipe
GRACE = 10  # seconds for other ranks to end and report the reason, after one has ended with an error
Work = Callable[[], Any]


@dataclass
class Ranks:
    """The processes of one run.

    Attributes:
        processes: Process ids of the ranks that have not ended.
        stderr: File with the messages of all ranks.
    """

    processes: list[int]
    stderr: Path

    def wait(self, timeout: float = 150) -> int:
        """Wait until all ranks have ended. As a launcher does, kill the others after one has failed.

        Returns:
            0, or the exit code of the rank that failed first.
        """
        end, exit_code = time.monotonic() + timeout, 0
        while self.processes:
            for process in list(self.processes):
                ended_process, status = os.waitpid(process, os.WNOHANG)
                if ended_process:
                    self.processes.remove(process)
                    exit_code = exit_code or os.waitstatus_to_exitcode(status)
            if exit_code:
                end = min(end, time.monotonic() + (GRACE if exit_code > 0 else 0))
            if time.monotonic() > end:
                self.kill()
            time.sleep(0.01)
        assert exit_code or time.monotonic() < end, f"no end within {timeout} s"
        return exit_code

    def finish(self) -> None:
        """Wait until all ranks have ended without an error."""
        assert self.wait() == 0, self.stderr.read_text()[-4000:]

    def kill(self) -> None:
        """Kill all ranks at once, as a power failure does."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in self.processes:
            os.waitpid(process, 0)
        self.processes = []


def start_ranks(world: int, work: Work, stderr: Path) -> Ranks:
    """Call a function in `world` processes with the environment of torchrun, or in one process without it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start(rank: int) -> None:
        sys.stderr = stderr.open("a", buffering=1)
        os.dup2(sys.stderr.fileno(), 2)
        # Threads of this process do not exist in its forks, which would wait for them.
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
        if world > 1:
            environment = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": world,
                           "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}  # fmt: skip
            os.environ |= {name: str(value) for name, value in environment.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "forks"}
            rank_zero_only.rank = rank  # read by Lightning from the environment on import
        work()

    return Ranks([child(lambda rank=rank: start(rank)) for rank in range(world)], stderr)


def start_run(recipe: Recipe, out: Path, *, prepare: Work | None = None) -> Ranks:
    """Train the recipe in as many processes as it has devices, or resume the run in `out`.

    Args:
        prepare: Called in each rank before it trains.
    """

    def work() -> None:
        if prepare is not None:
            prepare()
        train(recipe, out, quiet=True)

    return start_ranks(recipe.training.world_size, work, out.with_name(f"{out.name}.stderr"))


def start(
    folder: Path, family: str, machine: str, out: Path, *, changes: dict[str, Any] | None = None,
    prepare: Work | None = None, **settings: Any,
) -> Ranks:  # fmt: skip
    """Start or resume the family's run in `out` on this machine; `changes` replace CHANGES."""
    settings = {"exact": True, **FAMILIES[family], **(MACHINES | NOT_EXACT)[machine], **settings}
    return start_run(TINY[family](folder, changes or CHANGES.get(family), **settings), out, prepare=prepare)


def run_ranks(program: Path, folder: Path, world: int) -> list[dict[str, Any]]:
    """Run a program on `world` ranks, and return the results that each has written to `folder`, its argument."""

    def work() -> None:
        sys.argv = [str(program), str(folder)]
        runpy.run_path(str(program), run_name="__main__")

    start_ranks(world, work, folder / "stderr").finish()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]

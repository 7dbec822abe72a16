"""A signal stops all of a run's processes after the same step, and each of them knows what it was."""

import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import tiny_recipe

from tercet.training import train
from tercet.training.interruption import Interruption
from tercet.training.step_actions import StepActions


def trainer_of(others: int, *, should_stop: bool = False) -> Any:
    """One whose other process has come to `others`."""
    strategy = SimpleNamespace(
        root_device=torch.device("cpu"),
        reduce=lambda tensor, reduce_op: torch.maximum(tensor, torch.tensor(others)) if reduce_op == "max" else None,
    )
    return SimpleNamespace(should_stop=should_stop, strategy=strategy)


@pytest.mark.parametrize(
    ("mine", "stopping", "others", "stops", "number"),
    [
        (None, False, 0, False, None),
        (None, True, 0, True, None),  # patience has run out
        (None, False, 1, True, None),
        (None, False, 15, True, 15),  # or the first would take the run for finished
        (15, False, 0, True, 15),
        (2, True, 15, True, 15),
    ],
)
def test_all_stop_and_know_why(mine: int | None, stopping: bool, others: int, stops: bool, number: int | None) -> None:
    interruption, trainer = Interruption(), trainer_of(others, should_stop=stopping)
    interruption.signal = mine
    interruption.after_step(trainer, None)  # type: ignore[arg-type]
    assert (trainer.should_stop, interruption.signal) == (stops, number)


def test_lightning_puts_no_handlers_in_the_place_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor the one for SIGUSR1 that queues a SLURM job again."""
    seen: list[Any] = []
    monkeypatch.setattr(
        StepActions,
        "on_train_start",
        lambda *_: seen.extend(signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)),
    )
    for name, value in {"JOB_ID": "1", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    train(tiny_recipe(tmp_path, max_steps=1), tmp_path / "run", quiet=True)
    assert [getattr(handler, "__func__", handler) for handler in seen] == [Interruption._receive] * 2 + before[2:]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == before


def test_in_another_thread_it_leaves_signals_alone() -> None:
    """As under Ray, which trains in one."""
    before, entered = signal.getsignal(signal.SIGTERM), list[Interruption]()

    def work() -> None:
        with Interruption() as interruption:
            entered.append(interruption)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered
    assert signal.getsignal(signal.SIGTERM) == before

"""A signal stops all processes of a run after the same step, and each process gets the number of the signal."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import tiny_recipe

from tercet.cli import main as program
from tercet.training import train
from tercet.training.loop.interruption import Interruption
from tercet.training.loop.step_actions import StepActions


def make_trainer(other_state: int, *, should_stop: bool = False) -> Any:
    """Return a trainer whose other process has reached the state `other_state`."""
    strategy = SimpleNamespace(
        root_device=torch.device("cpu"),
        reduce=lambda tensor, reduce_op: (
            torch.maximum(tensor, torch.tensor(other_state)) if reduce_op == "max" else None
        ),
    )
    return SimpleNamespace(should_stop=should_stop, strategy=strategy)


@pytest.mark.parametrize(
    ("own_signal", "stopping", "other_state", "stops", "number"),
    [
        (None, False, 0, False, None),
        (None, True, 0, True, None),  # patience is exhausted
        (None, False, 1, True, None),
        (None, False, 16, True, 15),  # otherwise the first process would record a finished run
        (15, False, 0, True, 15),
        (2, True, 16, True, 15),
        (None, False, 2, True, 1),
        (1, False, 0, True, 1),
    ],
)
def test_all_processes_stop_with_the_signal(
    own_signal: int | None, stopping: bool, other_state: int, stops: bool, number: int | None
) -> None:
    interruption, trainer = Interruption(), make_trainer(other_state, should_stop=stopping)
    interruption.signal = own_signal
    interruption.after_step(trainer, None)  # type: ignore[arg-type]
    assert (trainer.should_stop, interruption.signal) == (stops, number)


def test_lightning_does_not_replace_signal_handlers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lightning's handler of SIGUSR1, which requeues a SLURM job, is not installed either."""
    handlers: list[Any] = []
    monkeypatch.setattr(
        StepActions,
        "on_train_start",
        lambda *_: handlers.extend(
            signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        ),
    )
    for name, value in {"JOB_ID": "1", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    train(tiny_recipe(tmp_path, max_steps=1), tmp_path / "run", quiet=True)
    assert [getattr(handler, "__func__", handler) for handler in handlers] == [Interruption._receive] * 2 + before[2:]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP here")
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_closed_terminal_stops_the_run_unless_nohup_is_used(is_ignored: bool) -> None:
    handler = signal.SIG_IGN if is_ignored else signal.SIG_DFL
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGHUP)
        assert interruption.signal == (None if is_ignored else signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # a second one is harmless
        with Interruption() as interruption:
            pass
        assert interruption.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_install_no_signal_handlers() -> None:
    """Ray trains in another thread."""
    before, interruptions = signal.getsignal(signal.SIGTERM), list[Interruption]()

    def work() -> None:
        with Interruption() as interruption:
            interruptions.append(interruption)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert interruptions
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("rank", "is_left"), [("0", False), ("1", True)])
def test_other_ranks_ignore_the_first_interrupt(
    rank: str, is_left: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It receives Ctrl-C too, and if it ended during startup, Lightning would kill the first process."""
    monkeypatch.setenv("LOCAL_RANK", rank)
    handlers = list[Any]()
    monkeypatch.setattr(program, "main", lambda words: handlers.append(signal.getsignal(signal.SIGINT)) or 0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    streams = sys.stdin, sys.stdout, sys.stderr
    try:
        with pytest.raises(SystemExit, match="0"):
            program.entry()
        [handler] = handlers
        assert (handler is not before[signal.SIGINT]) == is_left
        if is_left:
            signal.signal(signal.SIGINT, handler)
            handler(signal.SIGINT, None)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # a second one ends it
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, original_handler in before.items():
            signal.signal(number, original_handler)


@pytest.mark.parametrize(("rank", "lines"), [("0", ["finishing this step, then saving"]), ("1", [])])
def test_one_process_reports_that_it_finishes_the_step(
    rank: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    Interruption()._receive(signal.SIGINT, None)
    assert [line.partition(";")[0] for line in capsys.readouterr().err.split("\n") if line] == lines


@pytest.mark.exhaustive
def test_two_devices_interrupted_before_the_first_step_save_with_one_note(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words, and some more words. " * 200)
    sets = ("model.stack.d_model=32", "training.max_steps=2000", "training.compile=never")
    command = [
        "train",
        "text.txt",
        "--out",
        "run",
        "--devices",
        "2",
        *(word for setting in sets for word in ("--set", setting)),
    ]
    training = subprocess.Popen(
        [sys.executable, "-m", "tercet", *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "TERCET_KERNEL": "off", "TERCET_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    children = Path(f"/proc/{training.pid}/task/{training.pid}/children")
    while training.poll() is None and not children.read_text():
        time.sleep(0.05)
    time.sleep(1)  # the second process is still importing
    os.killpg(training.pid, signal.SIGINT)
    errors = training.communicate(timeout=120)[1]
    assert training.returncode == 130, errors
    for words in (
        "contains text; training with the recipe",
        "finishing this step, then saving",
        "stopped by SIGINT: saved in run",
    ):
        assert errors.count(words) == 1, errors
    assert "Traceback" not in errors

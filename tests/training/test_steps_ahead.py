"""Batches that are built one step ahead: equal and in order, and the thread always ends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny_runs import tiny_recipe, weights
from torch import Tensor

from tercet.training import train
from tercet.training.loop import datamodule, steps_ahead
from tercet.training.loop.module import TrainingModule
from tercet.training.loop.steps_ahead import CopyOnSideStream, StepsAhead, copy_to


class IdentityCopy:
    """A copy that does nothing, and records the thread that built each batch."""

    def __init__(self) -> None:
        self.threads = list[str]()

    def send(self, batches: list[Any]) -> list[Any]:
        self.threads.append(threading.current_thread().name)
        return batches

    def receive(self, batches: list[Any]) -> list[Any]:
        return batches


def ahead(build: Callable[[int], list[Any]], steps: range = range(5), micro: Callable[[], int] = lambda: 4) -> Any:
    return StepsAhead(build, steps, micro, IdentityCopy())


def left_over() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_order_and_content_are_those_of_the_steps() -> None:
    batches = ahead(lambda step: [step, 10 * step], range(3, 8))
    assert len(batches) == 5
    assert list(batches) == [[step, 10 * step] for step in range(3, 8)]
    assert all(name.startswith("batches") for name in batches.copy.threads)
    batches.close()
    assert not left_over()


def test_the_next_batch_is_built_while_a_step_trains() -> None:
    built_steps, wait = list[int](), threading.Event()

    def build(step: int) -> list[int]:
        built_steps.append(step)
        if step == 1:
            wait.set()
        return [step]

    batches = ahead(build)
    steps = iter(batches)
    assert next(steps) == [0]
    assert wait.wait(5.0)  # of step 1, which has not been requested yet
    assert built_steps == [0, 1]  # and not the step after it
    batches.close()


def test_an_error_is_raised_in_the_step_that_needs_the_batch() -> None:
    def build(step: int) -> list[int]:
        if step == 2:
            raise OSError(f"no shard for step {step}")
        return [step]

    batches = ahead(build)
    steps = iter(batches)
    assert [next(steps), next(steps)] == [[0], [1]]
    with pytest.raises(OSError, match="no shard for step 2"):
        next(steps)
    batches.close()
    assert not left_over()


def test_a_batch_of_larger_micro_batches_is_built_again() -> None:
    micro = 4
    batches = ahead(lambda step: [(step, micro)], micro=lambda: micro)
    steps = iter(batches)
    assert next(steps) == [(0, 4)]
    time.sleep(0.01)
    micro = 2  # as after a step that ran out of memory
    assert list(steps) == [[(step, 2)] for step in range(1, 5)]
    batches.close()


class Batch(NamedTuple):
    inputs: Tensor
    mask: Tensor | None


def test_copies_are_pinned_and_awaited_only_by_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()

    class Stream:
        def __init__(self, name: Any) -> None:
            self.name = name

        def record_event(self) -> str:
            calls.append("record event")
            return "copied"

        def wait_event(self, event: str) -> None:
            calls.append(f"{self.name} waits for {event}")

        def synchronize(self) -> None:
            raise AssertionError("the host waits")

    @contextmanager
    def stream(copy_stream: Stream) -> Iterator[None]:
        calls.append("enter")
        yield
        calls.append("leave")

    def note(name: str) -> Callable[..., Any]:
        return lambda x, *_, **__: (calls.append(name), x)[1]

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side"))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("current"))
    monkeypatch.setattr(Tensor, "pin_memory", note("pin"))
    monkeypatch.setattr(Tensor, "record_stream", note("record stream"))
    monkeypatch.setattr(steps_ahead, "move_data_to_device", note("move"))
    copy = copy_to(torch.device("cuda"))
    assert isinstance(copy, CopyOnSideStream)
    batches = [Batch(torch.arange(3), None), Batch(torch.arange(2), torch.ones(2))]
    pending = copy.send(batches)
    assert calls == ["pin"] * 3 + ["enter", "move", "record event", "leave"]
    calls.clear()
    result = copy.receive(pending)
    assert calls == ["current waits for copied"] + ["record stream"] * 3
    assert result[0].mask is None
    assert result[1].inputs.tolist() == [0, 1]


def test_a_cpu_has_no_thread() -> None:
    assert copy_to(torch.device("cpu")) is None


@pytest.mark.slow
def test_a_run_trains_on_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_recipe(tmp_path, max_steps=4)
    plain = train(recipe, tmp_path / "plain", quiet=True)
    copies = list[IdentityCopy]()
    monkeypatch.setattr(datamodule, "copy_to", lambda device: copies.append(IdentityCopy()) or copies[-1])
    assert weights(train(recipe, tmp_path / "ahead", quiet=True)) == weights(plain)
    assert len(copies[0].threads) == 4
    assert not left_over()

    def fail(*_: object) -> None:
        raise ValueError("in the middle of a step")

    monkeypatch.setattr(TrainingModule, "training_step", fail)
    with pytest.raises(ValueError, match="in the middle of a step"):
        train(recipe, tmp_path / "broken", quiet=True)
    assert not left_over()

"""Waiting requests with equal settings are batched, and each receives its own result."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.serve.engine import Batcher, Limits, QueueFull, ShuttingDown


class Answers:
    """Results by item. Each item may be answered only once."""

    def __init__(self) -> None:
        self.results: dict[Any, Any] = {}
        self._condition = threading.Condition()

    def to(self, name: Any) -> Callable[[Any], None]:
        def receive(answer: Any) -> None:
            with self._condition:
                assert name not in self.results, "answered twice"
                self.results[name] = answer
                self._condition.notify_all()

        return receive

    def wait(self, count: int) -> dict[Any, Any]:
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.results) >= count, 20), self.results
            return self.results


class Gate:
    """Function that records its batches and blocks until `go` is set."""

    def __init__(self, answer: Callable[[Any, Any], Any] = lambda item, key: (item, key)) -> None:
        self.answer = answer
        self.batches: list[tuple[list[Any], Any]] = []
        self.started, self.go = threading.Event(), threading.Event()

    def __call__(self, items: list[Any], key: Any) -> list[Any]:
        self.batches.append((list(items), key))
        self.started.set()
        assert self.go.wait(20)
        return [self.answer(item, key) for item in items]


@contextmanager
def batcher(call: Callable[[list[Any], Any], list[Any]], **limits: Any) -> Iterator[Batcher[Any, Any, Any]]:
    with Batcher(call, Limits(**limits)) as running_batcher:
        yield running_batcher
    assert (running_batcher.running, running_batcher.waiting) == (0, 0)


@contextmanager
def busy_batcher(gate: Gate, answers: Answers, **limits: Any) -> Iterator[Batcher[Any, Any, Any]]:
    """Yield a batcher whose worker is busy with the item "first", so that further items wait."""
    with batcher(gate, **limits) as running_batcher:
        running_batcher.submit("first", "k", answers.to("first"))
        assert gate.started.wait(20)
        try:
            yield running_batcher
        finally:
            gate.go.set()


def test_requests_with_equal_settings_are_batched_in_queue_order() -> None:
    gate, answers = Gate(), Answers()
    with busy_batcher(gate, answers, slots=3) as running_batcher:
        for item, key in ((1, "k"), (2, "other"), (3, "k"), (4, "k"), (5, "k"), (6, "other")):
            running_batcher.submit(item, key, answers.to(item))
        assert (running_batcher.running, running_batcher.waiting) == (1, 6)
        gate.go.set()
        results = answers.wait(7)
    assert gate.batches == [(["first"], "k"), ([1, 3, 4], "k"), ([2, 6], "other"), ([5], "k")]
    assert results == {"first": ("first", "k"), **{n: (n, "other" if n in (2, 6) else "k") for n in range(1, 7)}}


@settings(deadline=None, max_examples=40)
@given(
    items=st.lists(st.tuples(st.integers(-5, 5), st.sampled_from("abc"), st.booleans()), max_size=20),
    slots=st.integers(1, 5),
)
def test_each_item_gets_its_own_answer_despite_failing_items(items: list[tuple[int, str, bool]], slots: int) -> None:
    def call(numbers: list[int], key: str) -> list[float]:
        assert len(numbers) <= slots
        return [ord(key) / number for number in numbers]

    answers, not_cancelled = Answers(), []
    with batcher(call, slots=slots, waiting=99) as running_batcher:
        for name, (number, key, is_cancelled) in enumerate(items):
            job = running_batcher.submit(number, key, answers.to(name))
            if is_cancelled:
                job.cancel()
                was_answered = name in answers.results
            else:
                not_cancelled.append(name)
            if is_cancelled and not was_answered:
                answers.results[name] = "cancelled"  # a second answer would now fail the assertion
    for name, (number, key, is_cancelled) in enumerate(items):
        result = answers.results[name]
        if number == 0:
            assert isinstance(result, ZeroDivisionError) or (is_cancelled and result == "cancelled")
        else:
            assert result == ord(key) / number or (is_cancelled and result == "cancelled")


def test_a_failing_item_is_retried_separately() -> None:
    def answer(item: Any, key: Any) -> Any:
        if item == "bad":
            raise ValueError("it cannot be read")
        return item

    gate, answers = Gate(answer), Answers()
    with busy_batcher(gate, answers) as running_batcher:
        for item in ("a", "bad", "b"):
            running_batcher.submit(item, "k", answers.to(item))
        gate.go.set()
        results = answers.wait(4)
    assert (results["a"], results["b"], str(results["bad"])) == ("a", "b", "it cannot be read")
    assert [items for items, _ in gate.batches[1:]] == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]


def test_a_missing_answer_is_an_error_for_every_item() -> None:
    gate, answers = Gate(), Answers()
    with batcher(lambda items, key: items[1:], slots=2) as running_batcher:
        running_batcher.submit(1, "k", answers.to(1))
        assert "expected 1 answers, one per item, got 0" in str(answers.wait(1)[1])
    assert not gate.batches


def test_full_queues_shutdown_and_cancelled_items() -> None:
    gate, answers = Gate(), Answers()
    with busy_batcher(gate, answers, slots=1, waiting=2) as running_batcher:
        jobs = [running_batcher.submit(item, "k", answers.to(item)) for item in (1, 2)]
        with pytest.raises(QueueFull, match=r"the queue is full \(2 requests\)") as error:
            running_batcher.submit(3, "k", answers.to(3))
        assert error.value.retry_after >= 1
        jobs[0].cancel()
        jobs[0].cancel()
        running_batcher.submit(4, "k", answers.to(4))
    with pytest.raises(ShuttingDown):
        running_batcher.submit(5, "k", answers.to(5))
    assert answers.results == {"first": ("first", "k"), 2: (2, "k"), 4: (4, "k")}
    assert [items for items, _ in gate.batches] == [["first"], [2], [4]]


def test_the_retry_time_follows_earlier_durations() -> None:
    gate, answers = Gate(), Answers()
    with busy_batcher(gate, answers, slots=2, waiting=5) as running_batcher:
        running_batcher._queue._durations.extend([6.0, 8.0])
        for item in range(6):
            running_batcher.submit(item, "k", answers.to(item))
        with pytest.raises(QueueFull) as error:
            running_batcher.submit("one more", "k", answers.to("one more"))
        assert error.value.retry_after == 25  # seven rounds of 7 s, two requests each


def test_waiting_items_time_out_and_end_at_shutdown() -> None:
    gate, answers = Gate(), Answers()
    with busy_batcher(gate, answers, slots=1, seconds=30) as running_batcher:
        running_batcher.submit("late", "k", answers.to("late")).deadline = time.monotonic()
        gate.go.set()
        late = answers.wait(2)["late"]
        assert isinstance(late, TimeoutError)
        assert "longer than 30 s" in str(late)
    gate, answers = Gate(), Answers()
    with busy_batcher(gate, answers, slots=1) as running_batcher:
        running_batcher.submit("left", "k", answers.to("left"))
        closing = threading.Thread(target=lambda: running_batcher.close(seconds=0))
        closing.start()
        time.sleep(0.05)
        gate.go.set()
        closing.join(20)
        assert isinstance(answers.wait(2)["left"], ShuttingDown)


def test_a_failing_listener_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    def fails(answer: Any) -> None:
        raise OSError("the line is dead")

    gate, answers = Gate(), Answers()
    with busy_batcher(gate, answers) as running_batcher:
        running_batcher.submit("a", "k", fails)
        running_batcher.submit("b", "k", answers.to("b"))
        gate.go.set()
        assert answers.wait(2)["b"] == ("b", "k")
    assert "the line is dead" in caplog.text

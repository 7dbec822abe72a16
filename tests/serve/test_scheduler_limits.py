"""Limits of the scheduler: full queues, timeouts, cancellation and shutdown, and the state that they leave."""

import gc
import threading
import time

import pytest
from scheduled import GREEDY, MODEL, Heard, Held, asked, scheduler, until
from small_writer import TOKENIZER, alone, assert_is, request_for, writer

from tercet.generation import Sampling
from tercet.nn import Rotary
from tercet.serve.engine import (
    GenerationRequest,
    Limits,
    QueueFull,
    Scheduler,
    ShuttingDown,
    TokenEvent,
    batch_row,
)


@pytest.mark.slow
def test_requests_beyond_the_queue_are_rejected_with_a_retry_time() -> None:
    with scheduler(slots=1, waiting=2) as made:
        held = Held()
        asked(made, heard=held)
        held.begun.wait(20)
        line = [asked(made) for _ in range(2)]
        assert (made.running, made.waiting) == (1, 2)
        with pytest.raises(QueueFull, match=r"the queue is full \(2 requests\); try again in 1 s") as refused:
            asked(made)
        assert refused.value.retry_after == 1
        held.go.set()
        for one in line:
            assert_is(one.wait(), alone(MODEL, "the cat", GREEDY))
        asked(made).wait()


@pytest.mark.slow
def test_without_a_queue_free_slots_are_used() -> None:
    with scheduler(slots=1, waiting=0) as made:
        for _ in range(5):
            asked(made).wait()


def test_invalid_requests_are_rejected_immediately() -> None:
    with scheduler(max_new_tokens=10) as made:
        for wrong, words in (
            (GenerationRequest(ids=(), sampling=GREEDY), "at least one token"),
            (GenerationRequest(ids=(1, 283), sampling=GREEDY), "id 283 is not in the vocabulary; ids are 0 to 282"),
            (GenerationRequest(ids=(-1,), sampling=GREEDY), "id -1 is not in the vocabulary"),
            (
                GenerationRequest(ids=(1,), sampling=Sampling(max_new_tokens=11)),
                "max_new_tokens=11 exceeds the limit of 10",
            ),
            (
                GenerationRequest(ids=(1,), sampling=GREEDY, top_logprobs=-1),
                "top_logprobs=-1 must be between 0 and 283",
            ),
        ):
            with pytest.raises(ValueError, match=words):
                made.submit(wrong, Heard())


def test_requests_time_out_while_waiting_and_running() -> None:
    with scheduler(slots=1) as made:
        held, waiting = Held(), Heard()
        jobs = [
            made.submit(request_for("the", Sampling(max_new_tokens=200)), held),
            made.submit(request_for("a", GREEDY), waiting),
        ]
        held.begun.wait(20)
        last = asked(made)
        for job in jobs:
            job.deadline = time.monotonic()
        held.go.set()
        ended = held.wait()[-1]
        assert isinstance(ended, TokenEvent)
        assert (ended.finish, ended.token, len(held.events)) == ("time", None, 2)
        assert [(event.text, event.finish) for event in waiting.wait()] == [("", "time")]
        assert_is(last.wait(), alone(MODEL, "the cat", GREEDY))


def test_withheld_text_is_sent_at_a_timeout() -> None:
    said = alone(MODEL, "the", GREEDY).text
    with scheduler() as made:
        held = Held()
        sampling = Sampling(max_new_tokens=200, temperature=0, stop=(said + "never",))
        job = made.submit(request_for("the", sampling), held)
        held.begun.wait(20)
        job.deadline = time.monotonic()
        held.go.set()
        held.wait()
    assert [(event.text, event.finish) for event in held.events] == [("", None), (said[:1], "time")]


@pytest.mark.slow
def test_closing_finishes_running_and_waiting_requests() -> None:
    made = Scheduler(MODEL, TOKENIZER, Limits(slots=2))
    heard = [asked(made) for _ in range(7)]
    made.close()
    for one in heard:
        assert_is(one.wait(), alone(MODEL, "the cat", GREEDY))
    with pytest.raises(ShuttingDown, match="accepts no more"):
        asked(made)
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tercet-engine"]


@pytest.mark.slow
def test_closing_respects_its_timeout() -> None:
    made = Scheduler(MODEL, TOKENIZER, Limits(slots=1, max_new_tokens=10**6))
    heard = [asked(made, sampling=Sampling(max_new_tokens=10**6, temperature=2.0)) for _ in range(3)]
    until(lambda: heard[0].events)
    began = time.monotonic()
    made.close(seconds=0.1)
    assert time.monotonic() - began < 5
    for one in heard:
        assert isinstance(one.wait()[-1], ShuttingDown)


def test_a_listener_may_close_the_engine() -> None:
    made = Scheduler(MODEL, TOKENIZER, Limits())
    over = threading.Event()

    def tell(event: TokenEvent | Exception) -> None:
        made.close(seconds=0)
        over.set()

    made.submit(request_for("the", GREEDY), tell)
    assert over.wait(20)
    made.close()


def test_requests_are_cancelled_while_waiting_prefilling_and_running() -> None:
    model = writer(max_len=601, position=Rotary())
    with scheduler(model, slots=2, waiting=1) as made:
        held = Held()
        first = made.submit(request_for("a", Sampling(max_new_tokens=500)), held)
        held.begun.wait(20)
        reading, waiting = Heard(), Heard()
        second = made.submit(request_for("the cat sat on " * 50, GREEDY), reading)
        third = made.submit(request_for("the", GREEDY), waiting)
        third.cancel()
        assert (made.running, made.waiting) == (1, 1)
        held.go.set()
        until(lambda: made._batch.prefilling and made._batch.prefilling[0].n_prefilled)
        second.cancel()
        first.cancel()
        count = len(held.events)
        assert made.running == 0
        until(lambda: len(made._batch) == 0)
        for job in (first, second, third):
            job.cancel()  # a second cancellation has no effect
        assert (reading.events, waiting.events) == ([], [])
        assert len(held.events) == count
        assert_is(asked(made).wait(), alone(model, "the cat", GREEDY))


@pytest.mark.slow
def test_a_thousand_cancelled_requests_leave_nothing() -> None:
    with scheduler(slots=3, waiting=5000) as made:
        before = threading.active_count()
        for number in range(1000):
            heard = Heard()
            job = made.submit(request_for("the cat"[: 1 + number % 7], Sampling(max_new_tokens=1000)), heard)
            if number % 3 == 0:
                time.sleep(0.0005)
            job.cancel()
        until(lambda: len(made._batch) == 0)
        assert (made.running, made.waiting, made._active, made._batch._decoding._slots.lengths) == (0, 0, {}, [])
        assert threading.active_count() == before
        gc.collect()
        assert not [one for one in gc.get_objects() if type(one) is batch_row.BatchRow]
        assert_is(asked(made).wait(), alone(MODEL, "the cat", GREEDY))


@pytest.mark.slow
def test_an_idle_engine_uses_no_cpu_time() -> None:
    with scheduler() as made:
        asked(made).wait()
        time.sleep(0.05)
        began = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - began < 0.1


def test_invalid_limits_are_rejected() -> None:
    for wrong in ({"slots": 0}, {"waiting": -1}, {"max_new_tokens": 0}, {"seconds": 0.0}, {"seconds": float("nan")}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.* must be"):
            Limits(**wrong)

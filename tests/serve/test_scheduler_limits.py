"""Limits of the scheduler: full queues, timeouts, cancellation and shutdown, and the state that they leave."""

import gc
import threading
import time

import pytest
from scheduled import GREEDY, MODEL, BlockingListener, EventListener, scheduler, submit_request, until
from small_writer import TOKENIZER, assert_completes, generation_request, unbatched_completion, writer

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
    with scheduler(slots=1, waiting=2) as engine:
        blocker = BlockingListener()
        submit_request(engine, listener=blocker)
        blocker.started.wait(20)
        listeners = [submit_request(engine) for _ in range(2)]
        assert (engine.running, engine.waiting) == (1, 2)
        with pytest.raises(QueueFull, match=r"the queue is full \(2 requests\); try again in 1 s") as error:
            submit_request(engine)
        assert error.value.retry_after == 1
        blocker.go.set()
        for listener in listeners:
            assert_completes(listener.wait(), unbatched_completion(MODEL, "the cat", GREEDY))
        submit_request(engine).wait()


@pytest.mark.slow
def test_without_a_queue_free_slots_are_used() -> None:
    with scheduler(slots=1, waiting=0) as engine:
        for _ in range(5):
            submit_request(engine).wait()


def test_invalid_requests_are_rejected_immediately() -> None:
    with scheduler(max_new_tokens=10) as engine:
        for request, message in (
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
            with pytest.raises(ValueError, match=message):
                engine.submit(request, EventListener())


def test_requests_time_out_while_waiting_and_running() -> None:
    with scheduler(slots=1) as engine:
        blocker, waiting = BlockingListener(), EventListener()
        jobs = [
            engine.submit(generation_request("the", Sampling(max_new_tokens=200)), blocker),
            engine.submit(generation_request("a", GREEDY), waiting),
        ]
        blocker.started.wait(20)
        last = submit_request(engine)
        for job in jobs:
            job.deadline = time.monotonic()
        blocker.go.set()
        final_event = blocker.wait()[-1]
        assert isinstance(final_event, TokenEvent)
        assert (final_event.finish, final_event.token, len(blocker.events)) == ("time", None, 2)
        assert [(event.text, event.finish) for event in waiting.wait()] == [("", "time")]
        assert_completes(last.wait(), unbatched_completion(MODEL, "the cat", GREEDY))


def test_withheld_text_is_sent_at_a_timeout() -> None:
    text = unbatched_completion(MODEL, "the", GREEDY).text
    with scheduler() as engine:
        blocker = BlockingListener()
        sampling = Sampling(max_new_tokens=200, temperature=0, stop=(text + "never",))
        job = engine.submit(generation_request("the", sampling), blocker)
        blocker.started.wait(20)
        job.deadline = time.monotonic()
        blocker.go.set()
        blocker.wait()
    assert [(event.text, event.finish) for event in blocker.events] == [("", None), (text[:1], "time")]


@pytest.mark.slow
def test_closing_finishes_running_and_waiting_requests() -> None:
    engine = Scheduler(MODEL, TOKENIZER, Limits(slots=2))
    listeners = [submit_request(engine) for _ in range(7)]
    engine.close()
    for listener in listeners:
        assert_completes(listener.wait(), unbatched_completion(MODEL, "the cat", GREEDY))
    with pytest.raises(ShuttingDown, match="accepts no more"):
        submit_request(engine)
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tercet-engine"]


@pytest.mark.slow
def test_closing_respects_its_timeout() -> None:
    engine = Scheduler(MODEL, TOKENIZER, Limits(slots=1, max_new_tokens=10**6))
    listeners = [submit_request(engine, sampling=Sampling(max_new_tokens=10**6, temperature=2.0)) for _ in range(3)]
    until(lambda: listeners[0].events)
    began = time.monotonic()
    engine.close(seconds=0.1)
    assert time.monotonic() - began < 5
    for listener in listeners:
        assert isinstance(listener.wait()[-1], ShuttingDown)


def test_a_listener_may_close_the_engine() -> None:
    engine = Scheduler(MODEL, TOKENIZER, Limits())
    over = threading.Event()

    def close_engine(event: TokenEvent | Exception) -> None:
        engine.close(seconds=0)
        over.set()

    engine.submit(generation_request("the", GREEDY), close_engine)
    assert over.wait(20)
    engine.close()


def test_requests_are_cancelled_while_waiting_prefilling_and_running() -> None:
    model = writer(max_len=601, position=Rotary())
    with scheduler(model, slots=2, waiting=1) as engine:
        blocker = BlockingListener()
        first = engine.submit(generation_request("a", Sampling(max_new_tokens=500)), blocker)
        blocker.started.wait(20)
        reading, waiting = EventListener(), EventListener()
        second = engine.submit(generation_request("the cat sat on " * 50, GREEDY), reading)
        third = engine.submit(generation_request("the", GREEDY), waiting)
        third.cancel()
        assert (engine.running, engine.waiting) == (1, 1)
        blocker.go.set()
        until(lambda: engine._batch.prefilling and engine._batch.prefilling[0].n_prefilled)
        second.cancel()
        first.cancel()
        count = len(blocker.events)
        assert engine.running == 0
        until(lambda: len(engine._batch) == 0)
        for job in (first, second, third):
            job.cancel()  # a second cancellation has no effect
        assert (reading.events, waiting.events) == ([], [])
        assert len(blocker.events) == count
        assert_completes(submit_request(engine).wait(), unbatched_completion(model, "the cat", GREEDY))


@pytest.mark.slow
def test_a_thousand_cancelled_requests_leave_nothing() -> None:
    with scheduler(slots=3, waiting=5000) as engine:
        n_threads = threading.active_count()
        for number in range(1000):
            listener = EventListener()
            job = engine.submit(
                generation_request("the cat"[: 1 + number % 7], Sampling(max_new_tokens=1000)), listener
            )
            if number % 3 == 0:
                time.sleep(0.0005)
            job.cancel()
        until(lambda: len(engine._batch) == 0)
        assert (engine.running, engine.waiting, engine._active, engine._batch._decoding._slots.lengths) == (
            0,
            0,
            {},
            [],
        )
        assert threading.active_count() == n_threads
        gc.collect()
        assert not [candidate for candidate in gc.get_objects() if type(candidate) is batch_row.BatchRow]
        assert_completes(submit_request(engine).wait(), unbatched_completion(MODEL, "the cat", GREEDY))


@pytest.mark.slow
def test_an_idle_engine_uses_no_cpu_time() -> None:
    with scheduler() as engine:
        submit_request(engine).wait()
        time.sleep(0.05)
        began = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - began < 0.1


def test_invalid_limits_are_rejected() -> None:
    for limits in ({"slots": 0}, {"waiting": -1}, {"max_new_tokens": 0}, {"seconds": 0.0}, {"seconds": float("nan")}):
        with pytest.raises(ValueError, match=f"{next(iter(limits))}=.* must be"):
            Limits(**limits)

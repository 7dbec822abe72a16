"""Under any load a request gets what `generate` gives its prompt, and failures do not affect other requests."""

import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduled import GREEDY, KINDS, MODEL, MODELS, BlockingListener, EventListener, scheduler, submit_request
from small_writer import MAX_LEN, TOKENIZER, assert_completes, generation_request, unbatched_completion, writer

from tercet.config import UserError
from tercet.generation import Sampling, window_start
from tercet.models import DecoderOnly
from tercet.nn import Learned, Rotary
from tercet.nn.cache import StackCache
from tercet.serve.engine import (
    GenerationRequest,
    QueuedRequest,
    Scheduler,
    TokenEvent,
    slot_decoding,
)

prompts = st.text("abcehnost. ä🙂", max_size=4 * MAX_LEN)
samplings = st.builds(
    Sampling,
    max_new_tokens=st.integers(0, MAX_LEN + 7),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([None, 5]),
    top_p=st.sampled_from([None, 0.9]),
    min_p=st.sampled_from([None, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    seed=st.integers(0, 9),
)


requests = st.fixed_dictionaries(
    {
        "prompt": prompts,
        "sampling": samplings,
        "stop": st.none()
        | st.tuples(st.integers(0, 30), st.integers(1, 5)),  # start and length in the unrestricted text
        "after": st.integers(0, 40),  # number of events of all requests before this one arrives
        "cancelled": st.sampled_from([None, None, None, 0, 1, 4]),  # cancelled after this number of events
    }
)


def add_stop_strings(model: DecoderOnly, request: dict[str, Any]) -> dict[str, Any]:
    """Take the stop strings from the unrestricted text, so that they start and end anywhere within a token."""
    text = unbatched_completion(model, request["prompt"], request["sampling"]).text
    if not text or request["stop"] is None:
        return request
    start = request["stop"][0] % len(text)
    stop = (text[start : start + request["stop"][1]], "never to be met")
    return {**request, "sampling": replace(request["sampling"], stop=stop)}


class Schedule:
    """Requests that arrive and leave at times counted in events, so that failures are reproducible."""

    def __init__(self, engine: Scheduler, arrivals: list[dict[str, Any]]) -> None:
        self.scheduler, self.remaining = engine, sorted(arrivals, key=lambda request: request["after"])
        self.events: dict[int, list[TokenEvent | Exception]] = {number: [] for number in range(len(arrivals))}
        self.arrivals = list(self.remaining)
        self.jobs: dict[int, QueuedRequest[Any]] = {}
        self.n_events, self.open, self.done = 0, set[int](), threading.Event()

    def run(self) -> None:
        """Run all requests. Submissions and cancellations happen in the worker's thread, between two of its steps."""
        self.scheduler.submit(
            GenerationRequest(ids=(0,), sampling=Sampling(max_new_tokens=0)), lambda event: self.submit_due()
        )
        assert self.done.wait(20), "some requests did not finish"

    def submit_due(self) -> None:
        while self.remaining and (not self.open or self.remaining[0]["after"] <= self.n_events):
            request, number = self.remaining.pop(0), len(self.arrivals) - len(self.remaining) - 1
            self.open.add(number)

            def listener(event: TokenEvent | Exception, number: int = number) -> None:
                self.receive(number, event)

            job = self.scheduler.submit(generation_request(request["prompt"], request["sampling"]), listener)
            self.jobs[number] = job
            if request["cancelled"] == 0:
                self.cancel_request(number)
        if not self.open and not self.remaining:
            self.done.set()

    def cancel_request(self, number: int) -> None:
        self.jobs[number].cancel()
        self.open.discard(number)

    def receive(self, number: int, event: TokenEvent | Exception) -> None:
        assert number in self.open, "event after the final one"
        self.n_events += 1
        self.events[number].append(event)
        if isinstance(event, Exception) or event.finish is not None:
            self.open.discard(number)
        elif len(self.events[number]) == self.arrivals[number]["cancelled"]:
            self.cancel_request(number)
        self.submit_due()


def check_a_schedule(name: str, data: Any) -> None:
    model = MODELS[name]
    arrivals = [add_stop_strings(model, request) for request in data.draw(st.lists(requests, min_size=1, max_size=5))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_decoding, "CHUNK_WHILE_DECODING", data.draw(st.integers(1, 20), "tokens read between steps"))
        patch.setattr(slot_decoding, "CHUNK_WHILE_IDLE", data.draw(st.integers(1, 40), "tokens read undisturbed"))
        patch.setattr(slot_decoding, "CHUNK_ON_GPU", slot_decoding.CHUNK_WHILE_DECODING)
        with scheduler(model, slots=data.draw(st.integers(1, 4), "slots")) as engine:
            schedule = Schedule(engine, arrivals)
            schedule.run()
    for number, request in enumerate(schedule.arrivals):
        expected, events = unbatched_completion(model, request["prompt"], request["sampling"]), schedule.events[number]
        if request["cancelled"] is None or (events and not isinstance(events[-1], Exception) and events[-1].finish):
            assert_completes(events, expected)
        else:
            assert len(events) == request["cancelled"]
            tokens = tuple(event.token.id for event in events)
            assert tokens == expected.ids[: len(tokens)]


@pytest.mark.slow
@settings(deadline=None, max_examples=7)
@given(name=st.sampled_from(sorted(KINDS)), data=st.data())
def test_results_do_not_depend_on_other_requests(name: str, data: Any) -> None:
    check_a_schedule(name, data)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", KINDS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_results_do_not_depend_on_other_requests_in_many_schedules(name: str, data: Any) -> None:
    check_a_schedule(name, data)


@pytest.mark.slow
def test_concurrent_requests_share_steps_without_changing_results() -> None:
    prompts = [
        "the cat",
        "",
        "a",
        "the dog sat on the log and more than the context holds",
        "né 🙂",
        "sat",
        "on",
        "log",
    ]
    samplings = [Sampling(max_new_tokens=20, seed=seed, temperature=0.3 * seed, top_p=0.95) for seed in range(8)]
    with scheduler() as engine:
        listeners = [EventListener() for _ in prompts]
        for prompt, sampling, listener in zip(prompts, samplings, listeners, strict=True):
            engine.submit(generation_request(prompt, sampling), listener)
        for listener, prompt, sampling in zip(listeners, prompts, samplings, strict=True):
            assert_completes(listener.wait(), unbatched_completion(MODEL, prompt, sampling))


@pytest.mark.slow
def test_concurrent_requests_have_their_own_settings() -> None:
    settings: list[dict[str, Any]] = [{}, {"top_p": 0.3}, {"top_k": 2}, {"min_p": 0.5}, {"repetition_penalty": 2.0}]
    samplings = [Sampling(max_new_tokens=9, temperature=1.5, seed=3, **listener) for listener in settings]
    with scheduler() as engine:
        listeners = [submit_request(engine, "the cat", sampling) for sampling in samplings]
        for listener, sampling in zip(listeners, samplings, strict=True):
            assert_completes(listener.wait(), unbatched_completion(MODEL, "the cat", sampling))
    assert len({tuple(unbatched_completion(MODEL, "the cat", sampling).ids) for sampling in samplings}) == len(
        samplings
    )


@pytest.mark.slow
def test_top_logprobs_are_those_of_the_model() -> None:
    sampling = Sampling(max_new_tokens=2 * MAX_LEN, temperature=2.0, top_k=9, repetition_penalty=1.5, seed=4)
    first, second = EventListener(), EventListener()
    with scheduler() as engine:
        engine.submit(generation_request("the cat", sampling, top=5), first)
        engine.submit(generation_request("a dog", sampling, top=2), second)
        first.wait(), second.wait()
    for listener, prompt, count in ((first, "the cat", 5), (second, "a dog", 2)):
        row = TOKENIZER.encode(prompt)
        for event in listener.events:
            assert isinstance(event, TokenEvent)
            token, top = event.token, event.token.top
            with torch.no_grad():
                context = torch.tensor([row[window_start(len(row), MAX_LEN) :]])
                logprobs = MODEL(context)[0, -1].log_softmax(-1)
            values, ids = logprobs.topk(count)
            assert [id for id, _ in top] == ids.tolist()
            torch.testing.assert_close(torch.tensor([value for _, value in top]), values, atol=1e-4, rtol=1e-4)
            assert token.logprob == pytest.approx(logprobs[token.id].item(), abs=1e-4)
            row.append(token.id)


@pytest.mark.slow
def test_a_stop_string_is_never_sent_in_part_and_ends_the_row() -> None:
    sampling = Sampling(max_new_tokens=24, seed=1, temperature=1.2)
    text = unbatched_completion(MODEL, "the", sampling).text
    stop = text[3:8]
    with scheduler() as engine:
        listener = submit_request(engine, "the", replace(sampling, stop=(stop,)))
        events = listener.wait()
    assert events[-1].finish == "stop"
    assert "".join(event.text for event in events) == text[: text.index(stop)]


@pytest.mark.slow
def test_a_long_prompt_is_prefilled_in_chunks_between_decode_steps() -> None:
    """Between two tokens of a running row the model prefills at most one chunk, so the row is not delayed."""
    model = writer(max_len=601, position=Rotary())
    calls: list[tuple[int, int]] = []
    hidden = model.hidden

    def record_call(tokens: torch.Tensor, **rest: Any) -> torch.Tensor:
        calls.append(tuple(tokens.shape))
        return hidden(tokens, **rest)

    model.hidden = record_call  # type: ignore[method-assign]
    long_prompt = "the cat sat on " * 50
    first = BlockingListener()
    with scheduler(model) as engine:
        submit_request(engine, "a", Sampling(max_new_tokens=40, temperature=0), first)
        first.started.wait(20)
        second = submit_request(engine, long_prompt)
        first.go.set()
        first.wait(), second.wait()
    del model.hidden
    assert_completes(second.events, unbatched_completion(model, long_prompt, GREEDY))
    reads = [number for number, (_, width) in enumerate(calls) if width > 1]
    chunk_sizes = [rows * width for rows, width in calls if width > 1]
    assert sum(chunk_sizes) == len(TOKENIZER.encode(long_prompt)) > 3 * slot_decoding.CHUNK_WHILE_DECODING
    assert max(chunk_sizes) <= slot_decoding.CHUNK_WHILE_DECODING
    assert all(following - previous == 2 for previous, following in pairwise(reads)), (
        "the running row must decode one step between two chunks"
    )


@pytest.mark.slow
def test_samples_of_one_prompt_share_one_prefill() -> None:
    shapes: list[tuple[int, int]] = []
    model = writer(position=Rotary())
    start = model.start

    def record_shape(tokens: torch.Tensor, lengths: torch.Tensor, **rest: Any) -> Any:
        shapes.append(tuple(tokens.shape))
        return start(tokens, lengths, **rest)

    model.start = record_shape  # type: ignore[method-assign]
    blocker = BlockingListener()
    with scheduler(model) as engine:
        submit_request(engine, "on", listener=blocker)
        blocker.started.wait(20)
        samples = [submit_request(engine, "the cat", Sampling(max_new_tokens=5, seed=seed)) for seed in range(5)]
        blocker.go.set()
        for listener in samples:
            listener.wait()
    assert [rows for rows, _ in shapes] == [1, 1]
    for seed, listener in enumerate(samples):
        assert_completes(listener.events, unbatched_completion(model, "the cat", Sampling(max_new_tokens=5, seed=seed)))


def model_with_nan_embedding(token: int) -> DecoderOnly:
    """Return a model whose embedding of one token is NaN."""
    model = writer(position=Learned(), spec={"tie_embeddings": False})
    with torch.no_grad():
        model.embedding.weight[token] = torch.nan
    return model


NAN_TOKEN = TOKENIZER.encode("z")[0]


@pytest.mark.slow
def test_a_row_with_nan_fails_without_affecting_others() -> None:
    model, blocker = model_with_nan_embedding(NAN_TOKEN), BlockingListener()
    sampling = Sampling(max_new_tokens=20, seed=2)
    with scheduler(model, slots=3) as engine:
        submit_request(engine, "the", sampling, blocker)
        blocker.started.wait(20)
        failing = submit_request(engine, "zzzzzzzz")
        unaffected = submit_request(engine, "a dog", sampling)
        listeners = [submit_request(engine, "the cat") for _ in range(6)]
        blocker.go.set()
        (error,) = failing.wait()
        assert_completes(blocker.wait(), unbatched_completion(model, "the", sampling))
        assert_completes(unaffected.wait(), unbatched_completion(model, "a dog", sampling))
        for listener in listeners:
            assert_completes(listener.wait(), unbatched_completion(model, "the cat", GREEDY))
    assert isinstance(error, UserError)
    assert "not numbers (NaN): its training diverged" in str(error)


def test_planted_stale_cache_values_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a planted fault, the check of the test above fails: columns right of the copied row keep old values."""

    def write_prefix_only(self: StackCache, slot: int, source: StackCache, row: int, *, columns: int) -> None:
        for target_layer, source_layer in zip(self.layers, source.layers, strict=True):
            target_layer.self_kv.keys[slot, :, :columns] = source_layer.self_kv.keys[row, :, :columns]
            target_layer.self_kv.values[slot, :, :columns] = source_layer.self_kv.values[row, :, :columns]

    monkeypatch.setattr(StackCache, "write_rows", write_prefix_only)
    with scheduler(model_with_nan_embedding(NAN_TOKEN), slots=1) as engine:
        submit_request(engine, "zzzzzzzz").wait()
        (*_, last) = submit_request(engine, "the cat").wait()
    assert isinstance(last, UserError)


@pytest.mark.slow
def test_planted_missing_row_copy_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another planted fault, the check fails: the last row gets a free slot but is not copied there."""
    write_rows = StackCache.write_rows

    def write_other_rows(self: StackCache, slot: int, source: StackCache, row: int, *, columns: int) -> None:
        if source is not self:
            write_rows(self, slot, source, row, columns=columns)

    monkeypatch.setattr(StackCache, "write_rows", write_other_rows)
    short, long = Sampling(max_new_tokens=5, temperature=0), Sampling(max_new_tokens=9, temperature=0)
    blocker = BlockingListener()
    with scheduler() as engine:
        submit_request(engine, "the dog sat on", short, blocker)
        blocker.started.wait(20)  # a fast machine would finish it before the others arrive
        staying, moving = submit_request(engine, "a", long), submit_request(engine, "né ", long)
        blocker.go.set()
        blocker.wait()
        assert_completes(staying.wait(), unbatched_completion(MODEL, "a", long))
        events = moving.wait()
    with pytest.raises(AssertionError):  # it was moved to the first row's slot
        assert_completes(events, unbatched_completion(MODEL, "né ", long))


def test_a_model_with_only_nan_fails_every_request() -> None:
    model = writer()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    with scheduler(model, slots=2) as engine:
        for listener in [submit_request(engine) for _ in range(5)]:
            (error,) = listener.wait()
            assert isinstance(error, UserError)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["start", "step"])
def test_an_error_of_the_model_fails_only_the_rows_of_that_pass(method: str) -> None:
    model = writer(position=Rotary())
    honest = getattr(model, method)

    def fails(*args: Any, **rest: Any) -> Any:
        raise RuntimeError("out of memory, say")

    with scheduler(model, slots=2) as engine:
        blocker = BlockingListener()
        submit_request(engine, "the dog", listener=blocker)
        blocker.started.wait(20)
        setattr(model, method, fails)
        second = submit_request(engine, "a")
        blocker.go.set()
        failed = second if method == "start" else blocker
        unaffected = blocker if method == "start" else second
        assert str(failed.wait()[-1]) == "out of memory, say"
        setattr(model, method, honest)
        unaffected.wait()
        assert_completes(submit_request(engine, "the cat").wait(), unbatched_completion(model, "the cat", GREEDY))
    if method == "start":
        assert_completes(blocker.events, unbatched_completion(model, "the dog", GREEDY))


def test_a_failing_listener_is_logged_and_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    events: list[object] = []

    def fails(event: object) -> None:
        events.append(event)
        raise OSError("the line is dead")

    with scheduler(slots=1) as engine:
        engine.submit(generation_request("the", GREEDY), fails)
        assert_completes(submit_request(engine, "the cat").wait(), unbatched_completion(MODEL, "the cat", GREEDY))
    assert len(events) == 1
    assert "its request is cancelled" in caplog.text
    assert "the line is dead" in caplog.text

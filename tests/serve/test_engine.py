"""`tercet.Engine` runs several texts at once; each equals the text from `generate` and `stream`."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from http_served import fill_with_nan, trained_model
from small_writer import MAX_LEN, TOKENIZER, unbatched_completion, writer

import tercet
from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.generation import Sampling
from tercet.nn import Rotary
from tercet.serve.engine import GenerationStream, Limits, QueueFull, ShuttingDown

MODEL = writer(position=Rotary())
RUN = tercet.Run(trained_model=TrainedModel.wrap(MODEL, TOKENIZER, folder=Path("runs/mine")))
ENDLESS = 10**6  # tokens: more than any test waits for


@contextmanager
def assert_no_new_threads() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.slow
def test_concurrent_texts_equal_those_of_generate_and_stream() -> None:
    prompts = ["the cat", "", "a", "the dog sat on the log and more than the context holds", "né 🙂"]
    with assert_no_new_threads(), tercet.Engine(RUN, limits=Limits(slots=3)) as engine:
        streams = [
            engine.submit(prompt, seed=seed, max_new_tokens=2 * MAX_LEN, temperature=0.9, top_p=0.95)
            for seed, prompt in enumerate(prompts)
        ]
        assert engine.running + engine.waiting > 1
        for seed, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
            sampling = {"seed": seed, "max_new_tokens": 2 * MAX_LEN, "temperature": 0.9, "top_p": 0.95}
            assert stream.text() == RUN.generate(prompt, **sampling) == "".join(RUN.stream(prompt, **sampling))
            assert stream.finish == "length"


@pytest.mark.slow
def test_a_stream_yields_pieces_and_the_whole_text() -> None:
    expected = unbatched_completion(MODEL, "the", Sampling(max_new_tokens=9, seed=4))
    with tercet.Engine(RUN) as engine:
        stream = engine.submit("the", max_new_tokens=9, seed=4)
        pieces = iter(stream)
        first = next(pieces)
        assert expected.text.startswith(first)
        assert first + "".join(pieces) == expected.text
        assert list(stream) == []
        assert stream.text() == expected.text


def test_events_contain_tokens_and_top_logprobs() -> None:
    ids = TOKENIZER.encode("the")
    expected = unbatched_completion(MODEL, "the", Sampling(max_new_tokens=9, seed=4))
    with tercet.Engine(RUN) as engine:
        events = list(engine.submit(ids, top_logprobs=2, max_new_tokens=9, seed=4).events())
    tokens = [event.token for event in events if event.token is not None]
    assert tuple(token.id for token in tokens) == expected.ids
    torch.testing.assert_close(
        torch.tensor([token.logprob for token in tokens]), torch.tensor(expected.logprobs), atol=1e-4, rtol=1e-4
    )
    assert [len(token.top) for token in tokens] == [2] * 9
    assert [event.finish for event in events] == [None] * 8 + ["length"]


@pytest.mark.slow
def test_a_stop_string_ends_the_text() -> None:
    text = unbatched_completion(MODEL, "the", Sampling(max_new_tokens=20, seed=1)).text
    with tercet.Engine(RUN) as engine:
        stream = engine.submit("the", max_new_tokens=20, seed=1, stop=(text[3:6],))
        assert (stream.text(), stream.finish) == (text[: text.index(text[3:6])], "stop")


def test_cancelled_streams_end_and_free_their_slots() -> None:
    with tercet.Engine(RUN, limits=Limits(slots=1, max_new_tokens=ENDLESS)) as engine:
        endless = engine.submit("the", max_new_tokens=ENDLESS)
        waiting = engine.submit("the", max_new_tokens=ENDLESS)
        unaffected = engine.submit("a", max_new_tokens=3)
        first = next(iter(endless))
        waiting.cancel()
        endless.cancel()
        endless.cancel()
        assert endless.text().startswith(first)
        assert (waiting.text(), waiting.finish, endless.finish) == ("", None, None)
        assert unaffected.text() == unbatched_completion(MODEL, "a", Sampling(max_new_tokens=3)).text


@pytest.mark.slow
def test_leaving_the_block_finishes_submitted_streams() -> None:
    with assert_no_new_threads(), tercet.Engine(RUN) as engine:
        streams = [engine.submit("the cat", max_new_tokens=6, seed=seed) for seed in range(10)]
    for seed, stream in enumerate(streams):
        assert stream.text() == unbatched_completion(MODEL, "the cat", Sampling(max_new_tokens=6, seed=seed)).text
    with pytest.raises(ShuttingDown):
        engine.submit("the")


def test_an_exception_in_the_block_cancels_streams() -> None:
    streams: list[GenerationStream] = []

    def fail() -> None:
        with tercet.Engine(RUN) as engine:
            streams.append(engine.submit("the", max_new_tokens=ENDLESS))
            raise KeyError

    with assert_no_new_threads(), pytest.raises(KeyError):
        fail()
    with pytest.raises(ShuttingDown, match="shut down before the request was finished"):
        streams[0].text()
    assert list(streams[0]) == []


@pytest.mark.slow
def test_limits_of_the_engine_apply() -> None:
    with tercet.Engine(RUN, limits=Limits(slots=1, waiting=0, max_new_tokens=ENDLESS, seconds=0.2)) as engine:
        stream = engine.submit("the", max_new_tokens=ENDLESS)
        with pytest.raises(QueueFull, match="try again in"):
            engine.submit("the")
        assert stream.text()
        assert stream.finish == "time"


def test_invalid_submissions_are_rejected_immediately() -> None:
    with tercet.Engine(RUN) as engine:
        with pytest.raises(ValueError, match="temperature=-1 must be"):
            engine.submit("the", temperature=-1)
        with pytest.raises(ValueError, match="id 283 is not in the vocabulary"):
            engine.submit([283])
    with pytest.raises(UserError, match="is a masked language model, which cannot generate text"):
        tercet.Engine(tercet.Run(trained_model=trained_model("bert")))


@dataclass
class BrokenRun:
    """Stand-in for a `Run`; the engine only reads `trained_model`."""

    trained_model: TrainedModel


def test_nan_weights_are_reported() -> None:
    with tercet.Engine(BrokenRun(fill_with_nan(trained_model("gpt")))) as engine:
        stream = engine.submit("the")
        with pytest.raises(UserError, match=r"not numbers \(NaN\)"):
            stream.text()


@pytest.mark.slow
def test_the_engine_does_not_import_http_libraries() -> None:
    program = (
        "import sys, tercet; tercet.Engine\n"
        "loaded = {'fastapi', 'starlette', 'uvicorn', 'prometheus_client'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

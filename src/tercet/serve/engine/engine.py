"""The engine from Python: many texts at once from one language model, each a stream, without a server.

with tercet.Engine(run) as engine:
    streams = [engine.submit("Once upon a time", seed=seed) for seed in range(8)]
    for piece in streams[0]:
        print(piece, end="")
    print([stream.text() for stream in streams])
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Protocol, Unpack

from tercet.checkpoint import TrainedModel
from tercet.generation import Sampling, encode_prompt
from tercet.generation.specs import SamplingOptions
from tercet.serve.engine.limits import Limits
from tercet.serve.engine.request import Finish, GenerationRequest, TokenEvent
from tercet.serve.engine.request_queue import QueuedRequest
from tercet.serve.engine.scheduler import Scheduler

# One's own program is to be fair to nobody: only how many are generated at once is bounded.
UNBOUNDED_LIMITS = Limits(waiting=1 << 62, max_new_tokens=1 << 62, seconds=math.inf)


class HasTrainedModel(Protocol):
    """What `tercet.load` returns, as far as the engine looks at it."""

    @property
    def trained_model(self) -> TrainedModel: ...


class GenerationStream:
    """One text of an engine, as it is generated; to be read in one thread.

    Iterate over it for its text piece by piece, over `events()` for its tokens, or wait for `text()`. What it gives is
    what `generate` gives the prompt alone, whatever else the engine generates.

    Args:
        submit: hands the request to a worker, with the function that takes its events.

    Attributes:
        finish: why the text ended: "eos", "length", "stop" (a stop text) or "time"; None as long as that is not known.
    """

    def __init__(
        self, submit: Callable[[Callable[[TokenEvent | Exception], None]], QueuedRequest[GenerationRequest]]
    ) -> None:
        self.finish: Finish | None = None
        self._pieces: list[str] = []
        self._events_queue = SimpleQueue[TokenEvent | Exception | None]()  # None: it was cancelled
        self._ended = False
        self._request = submit(self._events_queue.put)

    def __iter__(self) -> Iterator[str]:
        """The text piece by piece, as far as it has not been read yet: whole characters, never part of a stop text.

        Raises:
            UserError: where the model's outputs are not numbers.
            ShuttingDown: where the engine was closed before the text was finished.
        """
        return (event.text for event in self.events() if event.text)

    def events(self) -> Iterator[TokenEvent]:
        """The same as events: each with its token, the token's log-probability and what else was likely."""
        while not self._ended:
            event = self._events_queue.get()
            self._ended = event is None or isinstance(event, Exception) or event.finish is not None
            if isinstance(event, Exception):
                raise event
            if event is not None:
                self._pieces.append(event.text)
                self.finish = event.finish
                yield event

    def text(self) -> str:
        """The whole text, once it is finished; where it was cancelled, as far as it came. Raises as iterating does."""
        for _ in self.events():
            pass
        return "".join(self._pieces)

    def cancel(self) -> None:
        """No more of it is generated; its slot is free for another. In any thread, at any time."""
        self._request.cancel()
        self._events_queue.put(None)


class Engine:
    """Continuous batching of one language model's texts; one worker thread, which is started.

    Closed by `close`, or at the end of a `with` block: what was submitted is finished then, and stays to be read; where
    the block ends by an exception, it is given up.

    Args:
        run: a trained language model, as `tercet.load` returns it.
        limits: by default eight texts are generated at once, and any number may wait, for any time.

    Raises:
        UserError: where the model is no language model.
    """

    def __init__(self, run: HasTrainedModel, *, limits: Limits | None = None) -> None:
        self._tokenizer = run.trained_model.tokenizer
        self._scheduler = Scheduler(
            run.trained_model.require("generate").model, self._tokenizer, UNBOUNDED_LIMITS if limits is None else limits
        )

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.close(seconds=None if error is None else 0)

    @property
    def running(self) -> int:
        """How many texts are generated now."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return self._scheduler.waiting

    def submit(
        self, prompt: str | Sequence[int] = "", *, top_logprobs: int = 0, **sampling: Unpack[SamplingOptions]
    ) -> GenerationStream:
        """Ask for what the model writes after `prompt`; it returns at once, in any thread.

        Args:
            prompt: a text, or token ids.
            top_logprobs: so many of the likeliest tokens come beside each that is sampled.
            sampling: temperature, seed, max_new_tokens, ...: the fields of `Sampling`.

        Raises:
            UserError: for a prompt with a character that the vocabulary lacks.
            ValueError: for settings or ids that make no sense.
            QueueFull, ShuttingDown: where `limits` leave no room, or the engine is closed.
        """
        ids = encode_prompt(self._tokenizer, prompt) if isinstance(prompt, str) else prompt
        request = GenerationRequest(ids=tuple(ids), sampling=Sampling(**sampling), top_logprobs=top_logprobs)
        return GenerationStream(partial(self._scheduler.submit, request))

    def close(self, *, seconds: float | None = None) -> None:
        """Take no more, finish what was submitted (what is not after `seconds` ends in `ShuttingDown`)."""
        self._scheduler.close(seconds=seconds)

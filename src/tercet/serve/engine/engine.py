"""The engine for Python programs: one language model generates many texts at once, each as a stream.

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

# A program does not share its engine with other clients, so only the number of concurrent texts is limited.
UNBOUNDED_LIMITS = Limits(waiting=1 << 62, max_new_tokens=1 << 62, seconds=math.inf)


class HasTrainedModel(Protocol):
    """The part of the result of `tercet.load` that the engine uses."""

    @property
    def trained_model(self) -> TrainedModel: ...


class GenerationStream:
    """A text that an engine generates; read it in one thread.

    Iterate over the stream for pieces of text or over `events()` for tokens, or wait for `text()`. The result is that
    of `generate` with this prompt only, whatever else the engine generates.

    Args:
        submit: Function that submits the request, with a callback for its events.

    Attributes:
        finish: Reason why the text ended: "eos", "length", "stop" (a stop string) or "time"; None until then.
    """

    def __init__(
        self, submit: Callable[[Callable[[TokenEvent | Exception], None]], QueuedRequest[GenerationRequest]]
    ) -> None:
        self.finish: Finish | None = None
        self._pieces: list[str] = []
        self._events_queue = SimpleQueue[TokenEvent | Exception | None]()  # None if it was cancelled
        self._ended = False
        self._request = submit(self._events_queue.put)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the unread pieces of the text: whole characters, and never a part of a stop string.

        Raises:
            UserError: If the outputs of the model are not numbers.
            ShuttingDown: If the engine was closed before the text was finished.
        """
        return (event.text for event in self.events() if event.text)

    def events(self) -> Iterator[TokenEvent]:
        """Yield unread events: each with its token, the token's log-probability and the likeliest tokens."""
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
        """Return the whole text when it is finished, or the part before a cancellation.

        Raises the same exceptions as iteration.
        """
        for _ in self.events():
            pass
        return "".join(self._pieces)

    def cancel(self) -> None:
        """Stop the generation and free its slot; in any thread, at any time."""
        self._request.cancel()
        self._events_queue.put(None)


class Engine:
    """Continuous batching for one language model, in one worker thread, which starts immediately.

    Close it with `close` or use it in a `with` block: submitted texts are then finished and can still be read. If the
    block ends with an exception, they are cancelled.

    Args:
        run: A trained language model, as returned by `tercet.load`.
        limits: Limits; by default eight texts are generated at once, and the queue and time are unlimited.

    Raises:
        UserError: If the model is not a language model.
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
        """Number of texts that are being generated."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """Number of texts in the queue."""
        return self._scheduler.waiting

    def submit(
        self, prompt: str | Sequence[int] = "", *, top_logprobs: int = 0, **sampling: Unpack[SamplingOptions]
    ) -> GenerationStream:
        """Submit a prompt, in any thread; returns immediately.

        Args:
            prompt: A text, or token ids.
            top_logprobs: Number of likeliest tokens to report with each sampled token.
            sampling: Fields of `Sampling`, such as temperature, seed and max_new_tokens.

        Raises:
            UserError: If the prompt contains a character that is not in the vocabulary.
            ValueError: If settings or ids are invalid.
            QueueFull, ShuttingDown: If the limits are reached, or the engine is closed.
        """
        ids = encode_prompt(self._tokenizer, prompt) if isinstance(prompt, str) else prompt
        request = GenerationRequest(ids=tuple(ids), sampling=Sampling(**sampling), top_logprobs=top_logprobs)
        return GenerationStream(partial(self._scheduler.submit, request))

    def close(self, *, seconds: float | None = None) -> None:
        """Accept no more requests and finish submitted ones.

        Those unfinished after `seconds` end with `ShuttingDown`.
        """
        self._scheduler.close(seconds=seconds)

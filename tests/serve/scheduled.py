"""A scheduler with small models, and listeners that record their events."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from small_writer import TOKENIZER, generation_request, writer

from tercet.generation import Sampling
from tercet.models import DecoderOnly
from tercet.nn import ALiBi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal
from tercet.serve.engine import (
    Limits,
    Scheduler,
    TokenEvent,
)

KINDS = {
    "learned": {"position": Learned(), "n_kv_heads": 4},
    "sinusoidal": {"position": Sinusoidal(), "n_kv_heads": 1},
    "rotary": {"position": Rotary(), "n_kv_heads": 2},
    "alibi": {"position": ALiBi(), "n_kv_heads": 2},
    "relative_bias": {"position": RelativeBias(n_buckets=8, max_distance=9, per_layer=True), "n_kv_heads": 2},
    "none": {"position": NoPosition(), "n_kv_heads": 4},
}
MODELS = {name: writer(**stack) for name, stack in KINDS.items()}
MODEL = MODELS["rotary"]
GREEDY = Sampling(max_new_tokens=6, temperature=0)


class EventListener:
    """Events that one request received."""

    def __init__(self) -> None:
        self.events: list[TokenEvent | Exception] = []
        self.over = threading.Event()

    def __call__(self, event: TokenEvent | Exception) -> None:
        assert not self.over.is_set(), "event after the final one"
        self.events.append(event)
        if isinstance(event, Exception) or event.finish is not None:
            self.over.set()

    def wait(self) -> list[TokenEvent | Exception]:
        assert self.over.wait(20), "no final event within 20 seconds"
        return self.events


class BlockingListener(EventListener):
    """Listener that blocks the worker in its first event until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.go = threading.Event(), threading.Event()

    def __call__(self, event: TokenEvent | Exception) -> None:
        super().__call__(event)
        self.started.set()
        assert self.go.wait(20)


@contextmanager
def scheduler(model: DecoderOnly = MODEL, **limits: Any) -> Iterator[Scheduler]:
    with Scheduler(model, TOKENIZER, Limits(**limits)) as engine:
        yield engine
    assert (engine.running, engine.waiting) == (0, 0)


def submit_request(
    engine: Scheduler, prompt: str = "the cat", sampling: Sampling = GREEDY, listener: EventListener | None = None
) -> EventListener:
    listener = EventListener() if listener is None else listener
    engine.submit(generation_request(prompt, sampling), listener)
    return listener


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "condition not met within 20 seconds"
        time.sleep(0.001)

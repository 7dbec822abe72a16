"""HTTP servers with tiny models of random weights for each model class, in-process or on a socket."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from starlette.testclient import TestClient

from tercet.checkpoint import TrainedModel
from tercet.encoding import SearchIndex
from tercet.limits import HEAD_SECONDS, MAX_CONNECTIONS, READING_SECONDS
from tercet.models import (
    AnyModel,
    Classifier,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.nn import Rotary
from tercet.run_encoding import RunEncoding
from tercet.serve.engine import GenerationRequest, Limits, QueueFull, SampledToken, ShuttingDown, TokenEvent
from tercet.serve.http.app import application
from tercet.serve.http.guard import AccessRules
from tercet.serve.http.log import ServerLog
from tercet.serve.registry import GenerationWorker, LoadedModel, ModelRegistry
from tercet.serve.server import ModelServer
from tercet.tokens import BPE, Tokenizer, WordPiece
from tercet.web.server import open_socket

TEXTS = ["the cat sat on the mat", "a dog ran", "the dog and the cat sat and ran until the mat was worn, unbelievable"]
STACK = StackSpec(d_model=24, n_layers=1, n_heads=3, d_ff=41, position=Rotary())
LABELS = ("bad", "fair", "good")
ROOM = 37
WRITER = Tokenizer.train(BPE(vocab_size=300, bos=True, pad=True), TEXTS)
READER = Tokenizer.train(WordPiece(vocab_size=80), TEXTS)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message.role not in ['user', 'assistant'] %}"
    "{{ raise_exception('no role ' + message.role) }}{% endif %}"
    "{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
LIMITS = Limits(slots=3, waiting=64, max_new_tokens=50, seconds=30)


def trained_model(kind: str) -> TrainedModel:
    """Return a model of this kind: gpt, chat, bert, vectors, texts, sets, numbers, pairs, words or translator."""
    reader = {"vocab_size": READER.vocab_size, "max_len": ROOM, "stack": STACK}
    model: AnyModel
    match kind:
        case "gpt" | "chat":
            model = DecoderOnly(DecoderOnlySpec(vocab_size=WRITER.vocab_size, max_len=ROOM, stack=STACK))
        case "bert":
            model = EncoderOnly(EncoderOnlySpec(**reader, masked_head=MaskedHead(bias=True)))
        case "vectors":
            model = EncoderOnly(EncoderOnlySpec(**reader, masked_head=None))
        case "texts":
            model = EncoderOnly(EncoderOnlySpec(**reader, masked_head=None, classifier=Classifier(labels=LABELS)))
        case "sets":
            head = Classifier(labels=LABELS, problem_type="multi_label_classification")
            model = EncoderOnly(EncoderOnlySpec(**reader, masked_head=None, classifier=head))
        case "numbers":
            head = Classifier(labels=("stars",), problem_type="regression", target_mean=1e4, target_std=20.0)
            model = EncoderOnly(EncoderOnlySpec(**reader, masked_head=None, classifier=head))
        case "pairs":
            head = Classifier(labels=("relevant",), problem_type="multi_label_classification")
            model = EncoderOnly(EncoderOnlySpec(**reader, masked_head=None, classifier=head))
        case "words":
            head = Classifier(labels=LABELS, over="tokens")
            model = EncoderOnly(EncoderOnlySpec(**reader, masked_head=None, classifier=head))
        case _:
            sides = {"encoder": STACK, "decoder": STACK}
            model = EncoderDecoder(EncoderDecoderSpec(vocab_size=READER.vocab_size, max_len=ROOM, **sides))
    tokenizer = WRITER if kind in ("gpt", "chat") else READER
    template = TEMPLATE if kind == "chat" else None
    return TrainedModel.wrap(scale_weights(model), tokenizer, chat_template=template, folder=Path(kind))


def index_texts(kind: str, texts: Sequence[str] = TEXTS, **settings: Any) -> SearchIndex:
    """Return an index of texts, with the ids 0.txt, 1.txt and so on, for the encoder of this kind."""
    documents = [(f"{number}.txt", text) for number, text in enumerate(texts)]
    return RunEncoding(trained_model=trained_model(kind)).index(documents, **settings)


def scale_weights(model: AnyModel) -> AnyModel:
    """Scale the weights to the size of trained ones, so that answers depend on every token."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3, generator=generator)
    return model.eval()


def fill_with_nan(trained_model: TrainedModel) -> TrainedModel:
    """Return the model with NaN weights, as after a diverged training run."""
    with torch.no_grad():
        next(trained_model.model.parameters()).fill_(float("nan"))
    return trained_model


class PacedWorker:
    """Fake generation worker that writes one letter after another once `go` is set."""

    def __init__(self, *, room: int = 3, pause: float = 0, fails: Exception | None = None) -> None:
        self.go = threading.Event()
        self.room, self.pause, self.fails = room, pause, fails
        self.running = self.waiting = self.cancelled = 0
        self.closed, self.is_alive = False, True
        self._lock = threading.Lock()

    def submit(self, request: GenerationRequest, on_event: Callable[[TokenEvent | Exception], None]) -> "PacedRequest":
        with self._lock:
            if self.closed:
                raise ShuttingDown
            if self.running >= self.room:
                raise QueueFull(self.running, 7)
            self.running += 1
        paced_request = PacedRequest(self, request, on_event)
        paced_request.thread.start()
        return paced_request

    def close(self, *, seconds: float | None = None) -> None:
        self.closed = True
        self.go.set()


class PacedRequest:
    def __init__(
        self, worker: PacedWorker, request: GenerationRequest, on_event: Callable[[TokenEvent | Exception], None]
    ) -> None:
        self.worker, self.request, self.on_event, self.over = worker, request, on_event, False
        self.thread = threading.Thread(target=self.write, daemon=True)

    def cancel(self) -> None:
        with self.worker._lock:
            if not self.over:
                self.over = True
                self.worker.running -= 1
                self.worker.cancelled += 1

    def write(self) -> None:
        count = self.request.sampling.max_new_tokens
        for left in range(count - 1, -1, -1):
            while not self.over and not self.worker.go.wait(0.01):
                pass
            time.sleep(self.worker.pause)
            with self.worker._lock:
                if self.over:
                    return
                if not left or self.worker.fails:
                    self.over = True
                    self.worker.running -= 1
            if self.worker.fails:
                self.on_event(self.worker.fails)
                return
            finish = None if left else "length"
            token = SampledToken(id=65, logprob=-1.0, finish=finish)
            self.on_event(TokenEvent(text="a", token=token, finish=finish))


@contextmanager
def registry(
    *kinds: str,
    limits: Limits = LIMITS,
    models: dict[str, TrainedModel] | None = None,
    scheduler: GenerationWorker | None = None,
    indexes: dict[str, SearchIndex] | None = None,
) -> Iterator[ModelRegistry]:
    trained_models, documents = {kind: trained_model(kind) for kind in kinds} | (models or {}), indexes or {}
    model_registry = ModelRegistry(
        LoadedModel(model, name=name, limits=limits, scheduler=scheduler, index=documents.get(name))
        for name, model in trained_models.items()
    )
    try:
        yield model_registry
    finally:
        model_registry.close(seconds=0)


@contextmanager
def client(*kinds: str, rules: AccessRules | None = None, **options: Any) -> Iterator[TestClient]:
    """Yield an in-process test client."""
    with (
        registry(*kinds, **options) as models,
        TestClient(
            application(models, rules), base_url="http://127.0.0.1", raise_server_exceptions=False
        ) as test_client,
    ):
        yield test_client


@contextmanager
def on_a_socket(*args: Any, **kwargs: Any) -> Iterator[str]:
    """Yield the address of a server that runs in a thread. Takes the arguments of `server_on_a_socket`."""
    with server_on_a_socket(*args, **kwargs) as (_, address):
        yield address


@contextmanager
def server_on_a_socket(
    models: ModelRegistry,
    rules: AccessRules | None = None,
    log: ServerLog | None = None,
    *,
    notes: list[str] | None = None,
    grace: float = 3,
    shutdown_delay: float = 0,
    connections: int = MAX_CONNECTIONS,
    head_seconds: float = HEAD_SECONDS,
    reading_seconds: float = READING_SECONDS,
) -> Iterator[tuple[ModelServer, str]]:
    """Yield a server and its address."""
    listening = open_socket("127.0.0.1", 0, send_timeout=30)
    server = ModelServer(
        application(models, rules, log=log),
        models,
        note=[].append if notes is None else notes.append,
        grace=grace,
        shutdown_delay=shutdown_delay,
        connections=connections,
    )
    server.limits.head_seconds, server.limits.reading_seconds = head_seconds, reading_seconds
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        yield server, f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()

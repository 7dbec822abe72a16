"""A model that is served: its name, what can be asked of it, and the workers that answer.

A language model has an engine, which writes many texts at once; what is answered in one go has a batcher for each task.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, Protocol

from tercet.checkpoint import Trained
from tercet.config import UserError, nearest
from tercet.evaluate import kind_of
from tercet.models import DecoderOnly, EncoderDecoder
from tercet.serve.batcher import Batcher
from tercet.serve.chat import ChatTemplate
from tercet.serve.engine import Ask, Engine, Piece
from tercet.serve.limits import Limits
from tercet.serve.parts import Job
from tercet.serve.refusals import Refused
from tercet.serve.tasks import Tasks

Route = Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/translate", "/fill-mask", "/classify"]
Task = Literal["score", "embed", "translate", "fill", "classify"]  # answered in one go
TASKS: dict[Route, tuple[Task, ...]] = {
    "/v1/completions": ("score",), "/v1/chat/completions": (), "/v1/embeddings": ("embed",),
    "/translate": ("translate",), "/fill-mask": ("fill",), "/classify": ("classify",),
}  # fmt: skip


class Worker(Protocol):
    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    def close(self, *, seconds: float | None = None) -> None: ...


class Writer(Worker, Protocol):
    """What an `Engine` is to its callers."""

    def submit(self, ask: Ask, on_piece: Callable[[Piece | Exception], None]) -> Job: ...


class Served:
    """Args:
    name: by which clients ask for the model.
    writer: in place of an engine of its own.
    """

    def __init__(self, trained: Trained, *, name: str, limits: Limits, writer: Writer | None = None) -> None:
        self.trained, self.name, self.limits = trained, name, limits
        self.tasks = Tasks(trained)
        self._writer = writer
        if writer is None and isinstance(trained.model, DecoderOnly):
            self._writer = Engine(trained.model, trained.tokenizer, limits)
        calls: dict[Task, Callable[[list[Any], Any], Sequence[Any]]] = {
            "score": self.tasks.scores, "translate": self.tasks.translations, "embed": self.tasks.vectors,
            "fill": self.tasks.fills, "classify": self.tasks.labels,
        }  # fmt: skip
        self._batchers = {task: _batcher(calls[task], limits) for route in self.routes for task in TASKS[route]}

    @property
    def max_len(self) -> int:
        return self.trained.model.max_len

    @property
    def kind(self) -> str:
        """What it is in words."""
        return kind_of(self.trained)[0]

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """What can be asked of it."""
        model = self.trained.model
        if isinstance(model, DecoderOnly):
            return ("/v1/completions", *(() if self.trained.chat_template is None else ("/v1/chat/completions",)))
        if isinstance(model, EncoderDecoder):
            return ("/translate",)
        fills, labels = model.spec.masked_head is not None, model.spec.classifier is not None
        return ("/v1/embeddings", *(("/fill-mask",) if fills else ()), *(("/classify",) if labels else ()))

    @property
    def writer(self) -> Writer:
        assert self._writer is not None, f"{self.name} does not write"
        return self._writer

    @cached_property
    def chat(self) -> ChatTemplate:
        assert self.trained.chat_template is not None, f"{self.name} has no chat template"
        return ChatTemplate(self.trained.chat_template, self.trained.tokenizer)

    def batcher(self, task: Task) -> Batcher[Any, Any, Any]:
        return self._batchers[task]

    @property
    def workers(self) -> Mapping[str, Worker]:
        return {**({} if self._writer is None else {"write": self._writer}), **self._batchers}


def _batcher(call: Callable[[list[Any], Any], Sequence[Any]], limits: Limits) -> Batcher[Any, Any, Any]:
    def listed(items: list[Any], key: Any) -> list[Any]:
        return list(call(items, key))

    return Batcher(listed, limits)


class Shelf:
    """The models that are served, by name.

    Raises:
        UserError: where there is none.
    """

    def __init__(self, models: Iterable[Served]) -> None:
        self.models = {served.name: served for served in models}
        self.closing = False
        if not self.models:
            raise UserError("there is no model to serve; give the folder of a run or of a model")

    def named(self, name: str) -> Served:
        if name not in self.models:
            message = f"there is no model {name[:100]!r} here{nearest(name[:100], self.models)}"
            raise Refused(404, message, param="model", code="model_not_found")
        return self.models[name]

    def able(self, name: str | None, route: Route) -> Served:
        """The model called `name`, or the only one that can be asked this.

        Raises:
            Refused: where there is none, or it cannot be asked this.
        """
        able = [served for served in self.models.values() if route in served.routes]
        if name is None:
            if len(able) == 1:
                return able[0]
            names = ", ".join(served.name for served in able)
            there = ", ".join(f"{served.name} ({served.kind})" for served in self.models.values())
            why = f"several models answer {route}: {names}; say which as model"
            none = f"no model here answers {route}; there is {there}"
            raise Refused(400, why if able else none, param="model")
        served = self.named(name)
        if route not in served.routes:
            raise Refused(400, self._unable(served, route), param="model", code="model_not_supported")
        return served

    @staticmethod
    def _unable(served: Served, route: Route) -> str:
        instead = " or ".join(served.routes)
        if route == "/v1/chat/completions" and "/v1/completions" in served.routes:
            return (
                f"{served.name} has no chat template, so it knows no conversations; use /v1/completions with a prompt"
            )
        return f"{served.name} is {served.kind}, which does not answer {route}; use {instead}"

    def close(self, *, seconds: float | None = None) -> None:
        """Take no more, and finish what there is, for so long at most."""
        self.closing = True
        every = [worker for served in self.models.values() for worker in served.workers.values()]
        with ThreadPoolExecutor(max(1, len(every))) as pool:
            for ended in [pool.submit(worker.close, seconds=seconds) for worker in every]:
                ended.result()

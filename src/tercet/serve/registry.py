"""Which models are loaded: of each its name, what it can be asked, and the workers that answer.

A language model has a scheduler, which generates many texts at once; what is answered in one go has a batcher for each
task.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, Protocol

from tercet.checkpoint import TrainedModel, Verb
from tercet.config import UserError, suggest
from tercet.serve.engine import Batcher, GenerationRequest, Limits, Scheduler, TokenEvent
from tercet.serve.engine.batch_tasks import BatchTasks
from tercet.tokens.chat_template import ChatTemplate

Endpoint = Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/translate", "/fill-mask", "/classify"]
BatchTask = Literal["score", "embed", "translate", "fill", "classify"]
BATCH_TASKS: dict[Endpoint, tuple[BatchTask, ...]] = {
    "/v1/completions": ("score",), "/v1/chat/completions": (), "/v1/embeddings": ("embed",),
    "/translate": ("translate",), "/fill-mask": ("fill",), "/classify": ("classify",),
}  # fmt: skip
VERBS: dict[Endpoint, Verb] = {  # what a model must be able to do
    "/v1/completions": "generate", "/v1/chat/completions": "generate", "/v1/embeddings": "embed",
    "/translate": "translate", "/fill-mask": "fill", "/classify": "classify",
}  # fmt: skip


class ModelSelectionError(UserError):
    """No model, or more than one, is what was asked for.

    Attributes:
        code: a word that programs can test for.
    """

    def __init__(self, message: str, code: Literal["model_not_found", "model_not_supported"] | None = None) -> None:
        super().__init__(message)
        self.code = code


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Worker(Protocol):
    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    def close(self, *, seconds: float | None = None) -> None: ...


class GenerationWorker(Worker, Protocol):
    """What a `Scheduler` is to its callers."""

    def submit(self, request: GenerationRequest, on_event: Callable[[TokenEvent | Exception], None]) -> Cancellable: ...


class LoadedModel:
    """Args:
    name: by which clients ask for the model.
    scheduler: in place of one of its own.
    """

    def __init__(
        self, trained_model: TrainedModel, *, name: str, limits: Limits, scheduler: GenerationWorker | None = None
    ) -> None:
        self.trained_model, self.name, self.limits = trained_model, name, limits
        self._scheduler = scheduler
        if scheduler is None and "generate" in trained_model.verbs:
            self._scheduler = Scheduler(trained_model.require("generate").model, trained_model.tokenizer, limits)
        tasks = BatchTasks(trained_model)
        calls: dict[BatchTask, Callable[[list[Any], Any], Sequence[Any]]] = {
            "score": tasks.score, "translate": tasks.translate, "embed": tasks.embed, "fill": tasks.fill,
            "classify": tasks.classify,
        }  # fmt: skip
        self._batchers = {task: Batcher(calls[task], limits) for path in self.endpoints for task in BATCH_TASKS[path]}

    @property
    def max_len(self) -> int:
        return self.trained_model.model.max_len

    @property
    def kind(self) -> str:
        """What it is in words."""
        return self.trained_model.kind

    @cached_property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """What can be asked of it."""
        verbs, chats = self.trained_model.verbs, self.trained_model.chat_template is not None
        return tuple(path for path in VERBS if VERBS[path] in verbs and (chats or path != "/v1/chat/completions"))

    @property
    def scheduler(self) -> GenerationWorker:
        assert self._scheduler is not None, f"{self.name} generates no text"
        return self._scheduler

    @cached_property
    def chat_template(self) -> ChatTemplate:
        assert self.trained_model.chat_template is not None, f"{self.name} has no chat template"
        return ChatTemplate(self.trained_model.chat_template, self.trained_model.tokenizer)

    def batcher(self, task: BatchTask) -> Batcher[Any, Any, Any]:
        return self._batchers[task]

    @property
    def workers(self) -> Mapping[str, Worker]:
        return {**({} if self._scheduler is None else {"write": self._scheduler}), **self._batchers}


class ModelRegistry:
    """The models that are loaded, by name.

    Attributes:
        is_ready: requests are taken, and will be; False once a server is about to end.

    Raises:
        UserError: where there is none.
    """

    def __init__(self, models: Iterable[LoadedModel]) -> None:
        self.models = {model.name: model for model in models}
        self.is_ready = True
        if not self.models:
            raise UserError("there is no model to serve; give the folder of a run or of a model")

    def get(self, name: str) -> LoadedModel:
        """The model called `name`.

        Raises:
            ModelSelectionError: where there is none.
        """
        if name not in self.models:
            message = f"there is no model {name[:100]!r} here{suggest(name[:100], self.models)}"
            raise ModelSelectionError(message, "model_not_found")
        return self.models[name]

    def select(self, name: str | None, endpoint: Endpoint) -> LoadedModel:
        """The model called `name`, or the only one that can be asked this.

        Raises:
            ModelSelectionError: where there is none, or it cannot be asked this.
        """
        if name is None:
            return self._single_model(endpoint)
        model = self.get(name)
        if endpoint not in model.endpoints:
            raise ModelSelectionError(_why_not(model, endpoint), "model_not_supported")
        return model

    def _single_model(self, endpoint: Endpoint) -> LoadedModel:
        candidates = [model for model in self.models.values() if endpoint in model.endpoints]
        if not candidates:
            available = ", ".join(f"{model.name} ({model.kind})" for model in self.models.values())
            raise ModelSelectionError(f"no model here answers {endpoint}; there is {available}")
        if len(candidates) > 1:
            names = ", ".join(model.name for model in candidates)
            raise ModelSelectionError(f"several models answer {endpoint}: {names}; say which as model")
        return candidates[0]

    @property
    def is_alive(self) -> bool:
        """Whether all that answer get on."""
        return all(worker.is_alive for worker in self._workers)

    def close(self, *, seconds: float | None = None) -> None:
        """Take no more, and finish what there is, for so long at most."""
        self.is_ready = False
        with ThreadPoolExecutor(max(1, len(self._workers))) as pool:
            for future in [pool.submit(worker.close, seconds=seconds) for worker in self._workers]:
                future.result()

    @property
    def _workers(self) -> list[Worker]:
        return [worker for model in self.models.values() for worker in model.workers.values()]


def _why_not(model: LoadedModel, endpoint: Endpoint) -> str:
    if endpoint == "/v1/chat/completions" and "/v1/completions" in model.endpoints:
        return f"{model.name} has no chat template, so it knows no conversations; use /v1/completions with a prompt"
    return f"{model.name} is {model.kind}, which does not answer {endpoint}; use {' or '.join(model.endpoints)}"

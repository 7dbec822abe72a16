"""Registry of loaded models: their names, endpoints and workers.

A language model has a scheduler, which generates many texts at once. Each other task of a model (scores of prompts,
translations, masks, classes, vectors) has a batcher.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, Protocol

from tercet.checkpoint import Encoder, TrainedModel, Verb
from tercet.checkpoint.training_data import translation_languages
from tercet.config import UserError, suggest
from tercet.encoding import SearchIndex
from tercet.encoding.rerank import can_rerank
from tercet.serve.engine import Batcher, GenerationRequest, Limits, Scheduler, TokenEvent
from tercet.serve.engine.batch_tasks import BatchTasks
from tercet.tokens.chat_template import ChatTemplate

Endpoint = Literal[
    "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/search", "/translate", "/fill-mask", "/classify",
    "/v1/rerank",
]  # fmt: skip
BatchTask = Literal["score", "embed", "search", "translate", "fill", "classify"]
BATCH_TASKS: dict[Endpoint, tuple[BatchTask, ...]] = {
    "/v1/completions": ("score",), "/v1/chat/completions": (), "/v1/embeddings": ("embed",),
    "/v1/search": ("embed", "search"), "/translate": ("translate",), "/fill-mask": ("fill",),
    "/classify": ("classify",), "/v1/rerank": (),  # by the task classify or embed, which such a model has
}  # fmt: skip
VERBS: dict[Endpoint, Verb] = {  # required capability of the model
    "/v1/completions": "generate", "/v1/chat/completions": "generate", "/v1/embeddings": "embed",
    "/v1/search": "embed", "/translate": "translate", "/fill-mask": "fill", "/classify": "classify",
    "/v1/rerank": "embed",
}  # fmt: skip
SEARCH_REMEDY = "start it with `tercet serve RUN --input FOLDER` or `--vectors FILE.npz`"


class ModelSelectionError(UserError):
    """No model, or more than one, matches a request.

    Attributes:
        code: Machine-readable error code; None if the request named no model.
    """

    def __init__(self, message: str, code: Literal["model_not_found", "model_not_supported"] | None = None) -> None:
        super().__init__(message)
        self.code = code


class Cancellable(Protocol):
    """A submitted request that can be cancelled."""

    def cancel(self) -> None: ...


class Worker(Protocol):
    """A thread that answers the requests of one task; see `QueueWorker`."""

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    def close(self, *, seconds: float | None = None) -> None: ...


class GenerationWorker(Worker, Protocol):
    """Interface of a `Scheduler`."""

    def submit(self, request: GenerationRequest, on_event: Callable[[TokenEvent | Exception], None]) -> Cancellable: ...


class LoadedModel:
    """A model with its endpoints and workers.

    Args:
        trained_model: Model to serve.
        name: Name by which requests select the model.
        limits: Limits of each worker of the model.
        scheduler: Worker that generates text; None for a new `Scheduler` if the model is a language model.
        index: Documents with vectors of the model, which /v1/search searches; None for no documents.

    Raises:
        UserError: If there are documents, and the model is not an encoder.
    """

    def __init__(
        self,
        trained_model: TrainedModel,
        *,
        name: str,
        limits: Limits,
        scheduler: GenerationWorker | None = None,
        index: SearchIndex | None = None,
    ) -> None:
        self.trained_model, self.name, self.limits, self.index = trained_model, name, limits, index
        if index is not None:
            trained_model.require("embed")
        self._scheduler = scheduler
        if scheduler is None and "generate" in trained_model.verbs:
            self._scheduler = Scheduler(trained_model.require("generate").model, trained_model.tokenizer, limits)
        tasks = BatchTasks(trained_model, index)
        calls: dict[BatchTask, Callable[[list[Any], Any], Sequence[Any]]] = {
            "score": tasks.score, "translate": tasks.translate, "embed": tasks.embed, "search": tasks.search,
            "fill": tasks.fill, "classify": tasks.tag if self.labels_words else tasks.classify,
        }  # fmt: skip
        needed: list[BatchTask] = [task for path in self.endpoints for task in BATCH_TASKS[path]]
        self._batchers = {task: Batcher(calls[task], limits) for task in dict.fromkeys(needed)}

    @property
    def max_len(self) -> int:
        return self.trained_model.model.max_len

    @property
    def kind(self) -> str:
        """The type of the model in words, for listings and error messages."""
        return self.trained_model.kind

    @property
    def labels_words(self) -> bool:
        """True if the model has a classifier of words."""
        model = self.trained_model
        head = model.model.spec.classifier if isinstance(model, Encoder) else None
        return head is not None and head.over == "tokens"

    @property
    def scores_pairs(self) -> bool:
        """True if the model has a classifier of pairs for reranking."""
        return isinstance(self.trained_model, Encoder) and can_rerank(self.trained_model.model)

    @cached_property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Endpoints that the model supports."""
        unsupported = set[Endpoint]()
        if self.trained_model.chat_template is None:
            unsupported.add("/v1/chat/completions")
        if not (self.scores_pairs or self.trained_model.task == "vectors"):
            unsupported.add("/v1/rerank")
        if self.index is None:
            unsupported.add("/v1/search")
        return tuple(path for path in VERBS if VERBS[path] in self.trained_model.verbs and path not in unsupported)

    @cached_property
    def languages(self) -> tuple[str | None, str | None]:
        """Languages that the model translates from and to, as its data settings name them; None if they do not."""
        return translation_languages(self.trained_model) if "translate" in self.trained_model.verbs else (None, None)

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
    """The loaded models by name.

    Attributes:
        models: Models by name.
        is_ready: False once a shutdown has started, as reported by /ready; requests may still be accepted for a while.

    Raises:
        UserError: If there are no models.
    """

    def __init__(self, models: Iterable[LoadedModel]) -> None:
        self.models = {model.name: model for model in models}
        self.is_ready = True
        if not self.models:
            raise UserError("no model to serve; pass the folder of a run or of a model")

    def get(self, name: str) -> LoadedModel:
        """Return the model called `name`.

        Raises:
            ModelSelectionError: If there is no such model.
        """
        if name not in self.models:
            message = f"no model {name[:100]!r} on this server{suggest(name[:100], self.models)}"
            raise ModelSelectionError(message, "model_not_found")
        return self.models[name]

    def select(self, name: str | None, endpoint: Endpoint) -> LoadedModel:
        """Return the model called `name`, or the only one that supports the endpoint; for /v1/rerank the only reranker.

        Raises:
            ModelSelectionError: If the named model is unknown or does not support the endpoint, or if `name` is None
                and not exactly one model supports it.
        """
        if name is None:
            return self._single_model(endpoint)
        model = self.get(name)
        if endpoint not in model.endpoints:
            raise ModelSelectionError(_why_not(model, endpoint), "model_not_supported")
        return model

    def _single_model(self, endpoint: Endpoint) -> LoadedModel:
        candidates = [model for model in self.models.values() if endpoint in model.endpoints]
        if endpoint == "/v1/rerank":  # a reranker is more accurate than the similarity of vectors
            candidates = [model for model in candidates if model.scores_pairs] or candidates
        if not candidates and endpoint == "/v1/search":
            raise ModelSelectionError(f"this server has no documents to search; {SEARCH_REMEDY}")
        if not candidates:
            available = ", ".join(f"{model.name} ({model.kind})" for model in self.models.values())
            raise ModelSelectionError(f"no model on this server supports {endpoint}; available: {available}")
        if len(candidates) > 1:
            names = ", ".join(model.name for model in candidates)
            raise ModelSelectionError(f"several models support {endpoint}: {names}; set the field model to one of them")
        return candidates[0]

    @property
    def is_alive(self) -> bool:
        """Liveness: True if all workers make progress."""
        return all(worker.is_alive for worker in self._workers)

    def close(self, *, seconds: float | None = None) -> None:
        """Accept no more requests, and return when the current ones are finished.

        Args:
            seconds: Time after which unfinished requests end with `ShuttingDown`; None for no limit.
        """
        self.is_ready = False
        with ThreadPoolExecutor(max(1, len(self._workers))) as pool:
            for future in [pool.submit(worker.close, seconds=seconds) for worker in self._workers]:
                future.result()

    @property
    def _workers(self) -> list[Worker]:
        return [worker for model in self.models.values() for worker in model.workers.values()]


def _why_not(model: LoadedModel, endpoint: Endpoint) -> str:
    if endpoint == "/v1/chat/completions" and "/v1/completions" in model.endpoints:
        return f"{model.name} has no chat template for conversations; use /v1/completions with a prompt"
    if endpoint == "/v1/rerank" and "/classify" in model.endpoints:
        return f"{model.name} has several labels, but reranking requires one score per pair of texts; use /classify"
    if endpoint == "/v1/search" and "/v1/embeddings" in model.endpoints:
        return f"{model.name} has no documents to search; {SEARCH_REMEDY}"
    return f"{model.name} is {model.kind}, which does not support {endpoint}; use {' or '.join(model.endpoints)}"

"""What a route works with: the service that it belongs to, and of one request its model and its counts."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from tercet.serve.http.disconnect import unless_disconnected
from tercet.serve.http.errors import APIError
from tercet.serve.http.guard import AccessRules, RequestStats
from tercet.serve.http.metrics import ServerMetrics
from tercet.serve.http.requests import RequestBody
from tercet.serve.http.worker_answers import worker_answers
from tercet.serve.registry import BatchTask, Endpoint, LoadedModel, ModelRegistry

Args = ParamSpec("Args")
Result = TypeVar("Result")
SHORT_BODY = 2048  # bytes of a request whose texts are cut into tokens in well under a millisecond


@dataclass
class Service:
    """What all routes share.

    Attributes:
        body_bytes: of all requests that are read or answered now.
    """

    registry: ModelRegistry
    metrics: ServerMetrics
    rules: AccessRules
    body_bytes: int = 0


def service_of(request: Request) -> Service:
    return request.app.state.service


class RequestContext:
    """A request that one of the models answers.

    Raises:
        ModelSelectionError: where none can, or it is not clear which.
    """

    def __init__(self, request: Request, body: RequestBody, endpoint: Endpoint) -> None:
        service = service_of(request)
        self.request, self.metrics = request, service.metrics
        self.model: LoadedModel = service.registry.select(body.model, endpoint)
        self.stats: RequestStats = request.state.stats

    def count_prompt_tokens(self, count: int) -> None:
        self.stats.model, self.stats.prompt_tokens = self.model.name, count
        self.metrics.count_prompt_tokens(self.model.name, count)

    def count_new_tokens(self, count: int) -> None:
        self.stats.new_tokens += count
        self.metrics.count_new_tokens(self.model.name, count)

    async def count_text_tokens(self, texts: Sequence[str]) -> None:
        """Count the prompt's tokens; a text that cannot be encoded is refused here, before a batch has it."""
        encoded = await self.tokenize(self.model.trained_model.source_tokenizer.encode_batch, texts)
        self.count_prompt_tokens(sum(map(len, encoded)))

    async def tokenize(self, encode: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs) -> Result:
        """What `encode` makes of the request's texts. Of short ones here: it takes less time than to wake a thread,
        which waits for Python's lock, and to be woken by it; others would hold everyone up."""
        if len(await self.request.body()) <= SHORT_BODY:
            return encode(*args, **kwargs)
        return await run_in_threadpool(encode, *args, **kwargs)

    async def answer_batch(self, task: BatchTask, items: Sequence[Any], key: Any) -> list[Any]:
        """The answer to each item, in their order; given up where the client goes.

        Args:
            key: the settings; items of equal ones may be answered together, also with other requests'.
        """
        return await unless_disconnected(self.request, self._gather(task, items, key))

    async def _gather(self, task: BatchTask, items: Sequence[Any], key: Any) -> list[Any]:
        limits, batcher = self.model.limits, self.model.batcher(task)
        submits = [partial(batcher.submit, item, key) for item in items]
        arriving = worker_answers(submits, max_running=limits.slots, seconds=limits.seconds, is_last=lambda _: True)
        async with aclosing(arriving):
            try:
                answers = {index: answer async for index, answer in arriving}
            except ValueError as error:  # what was asked does not fit this model
                raise APIError(400, str(error)) from None
        return [answers[index] for index in range(len(items))]

    def known_ids(self, ids: Sequence[int], param: str) -> list[int]:
        """Token ids that a client sent.

        Raises:
            APIError: where the vocabulary does not have one.
        """
        size = self.model.trained_model.tokenizer.vocab_size
        if unknown := [token for token in ids if token >= size]:
            raise APIError(400, f"the vocabulary has no id {unknown[0]}; ids are 0 to {size - 1}", param=param)
        return list(ids)

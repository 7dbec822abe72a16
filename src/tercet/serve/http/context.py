"""The shared state of the service, and the context of a request: its model and its token counts."""

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
SHORT_BODY = 2048  # bytes of a request whose texts are tokenized in well under a millisecond


@dataclass
class Service:
    """State shared by all routes.

    Attributes:
        registry: Models of the server.
        metrics: Metrics of the server.
        rules: Access rules.
        body_bytes: Total size of the bodies of all current requests in bytes.
    """

    registry: ModelRegistry
    metrics: ServerMetrics
    rules: AccessRules
    body_bytes: int = 0


def service_of(request: Request) -> Service:
    """Return the shared state of the application that received the request."""
    return request.app.state.service


class RequestContext:
    """A request and the model that answers it.

    Args:
        request: Request.
        body: Parsed body of the request.
        endpoint: Endpoint that received the request.

    Raises:
        ModelSelectionError: If the model that `body` names is unknown or does not support the endpoint, or if `body`
            names none and not exactly one model supports it.
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

    async def count_text_tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of the input texts, for the log and the metrics, and return their number.

        A text that cannot be encoded raises UserError here, before it enters a batch with other texts.
        """
        encoded = await self.compute(self.model.trained_model.source_tokenizer.encode_batch, texts)
        self.count_prompt_tokens(count := sum(map(len, encoded)))
        return count

    async def compute(self, function: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs) -> Result:
        """Return the result of a function of the texts of the request, called directly or in a thread.

        If the body is short, starting a thread and waiting for the interpreter lock would take longer than a function
        such as the encoding of the texts. Encoding longer texts directly would block all clients.
        """
        if len(await self.request.body()) <= SHORT_BODY:
            return function(*args, **kwargs)
        return await run_in_threadpool(function, *args, **kwargs)

    async def answer_batch(self, task: BatchTask, items: Sequence[Any], key: Any) -> list[Any]:
        """Return the answer to each item, in their order.

        Args:
            task: Task of the model's batcher that answers the items.
            items: Items to answer.
            key: Settings; items with equal settings may be answered together, including those of other requests.

        Raises:
            ClientGone: If the client disconnects first; the unfinished items are cancelled.
            APIError: If an item is invalid for the model.
        """
        return await unless_disconnected(self.request, self._gather(task, items, key))

    async def _gather(self, task: BatchTask, items: Sequence[Any], key: Any) -> list[Any]:
        limits, batcher = self.model.limits, self.model.batcher(task)
        submits = [partial(batcher.submit, item, key) for item in items]
        arriving = worker_answers(submits, max_running=limits.slots, seconds=limits.seconds, is_last=lambda _: True)
        async with aclosing(arriving):
            try:
                answers = {index: answer async for index, answer in arriving}
            except ValueError as error:  # an item is invalid for this model
                raise APIError(400, str(error)) from None
        return [answers[index] for index in range(len(items))]

    def known_ids(self, ids: Sequence[int], param: str) -> list[int]:
        """Check token ids from a client and return them as a list.

        Args:
            ids: Token ids, which are not negative.
            param: Field of the request, for the error.

        Raises:
            APIError: If an id is not in the vocabulary.
        """
        size = self.model.trained_model.tokenizer.vocab_size
        if unknown := [token for token in ids if token >= size]:
            raise APIError(400, f"id {unknown[0]} is not in the vocabulary; ids are 0 to {size - 1}", param=param)
        return list(ids)

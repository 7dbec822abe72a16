"""Scheduler: the texts of requests that arrive at any time are generated together, one token per step.

Only the worker thread runs the model. The prompt of a new request is prefilled between two decode steps, then its row
joins the batch; a finished row frees its slot immediately. The text of a request is the one that
`tercet.generation.generate` returns for this prompt only.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tercet.config import UserError
from tercet.generation.decode_graphs import can_capture
from tercet.generation.grammar import start_grammar
from tercet.generation.protocol import device_of
from tercet.generation.text import TextRow, end_ids
from tercet.models import DecoderOnly
from tercet.serve.engine.limits import Limits, ShuttingDown
from tercet.serve.engine.queue_worker import QueueWorker
from tercet.serve.engine.request import GenerationRequest, TokenEvent
from tercet.serve.engine.request_queue import Expiry, QueuedRequest
from tercet.serve.engine.running_batch import BatchRow, RunningBatch
from tercet.serve.engine.sampling import SampledToken
from tercet.tokens import Tokenizer

log = logging.getLogger(__name__)


class Scheduler(QueueWorker[GenerationRequest]):
    """Worker thread for continuous batching of generated texts; it starts immediately.

    Args:
        model: Language model.
        tokenizer: Tokenizer of the model.
        limits: Limits of the worker; at most `limits.slots` texts are generated at once.
    """

    def __init__(self, model: DecoderOnly, tokenizer: Tokenizer, limits: Limits) -> None:
        self._model, self._tokenizer, self._slots = model, tokenizer, limits.slots
        self._batch, self._grammar_batch = self._new_batches()
        self._active: dict[BatchRow, _ActiveRequest] = {}  # of all rows in the batch
        super().__init__(limits, thread_name="tercet-engine")

    def submit(
        self, request: GenerationRequest, on_event: Callable[[TokenEvent | Exception], None]
    ) -> QueuedRequest[GenerationRequest]:
        """Submit a request; may be called in any thread.

        Args:
            request: Prompt and settings of the text.
            on_event: Callback for events, called in the worker thread. The last event has a `finish`, or is an
                exception: `UserError` if the model's outputs are NaN, `ShuttingDown`, or an exception of the model. The
                callback is not called after `QueuedRequest.cancel`. It must return quickly, since all requests wait for
                it. If it raises, the exception is logged and the request is cancelled.

        Returns:
            The request, which can be cancelled.

        Raises:
            QueueFull: If the queue is full.
            ShuttingDown: If the scheduler has been closed.
            ValueError: If the prompt is empty, an id is not in the vocabulary, or `max_new_tokens` or `top_logprobs`
                exceeds its limit.
            UserError: If the JSON schema or regex cannot be used.
        """
        self._check(request)
        start_grammar(self._tokenizer, request.sampling, after=request.ids)  # compiled here, not by the worker
        return self._queue.submit(request, on_event)

    def _check(self, request: GenerationRequest) -> None:
        vocab_size = self._model.vocab_size
        if not request.ids:
            raise ValueError("the prompt is empty; pass at least one token")
        if not 0 <= min(request.ids) <= max(request.ids) < vocab_size:
            invalid_id = next(token for token in request.ids if not 0 <= token < vocab_size)
            raise ValueError(f"id {invalid_id} is not in the vocabulary; ids are 0 to {vocab_size - 1}")
        if request.sampling.max_new_tokens > (limit := self._limits.max_new_tokens):
            raise ValueError(
                f"max_new_tokens={request.sampling.max_new_tokens} exceeds the limit of {limit}; request fewer tokens"
            )
        if not 0 <= request.top_logprobs <= vocab_size:
            raise ValueError(f"top_logprobs={request.top_logprobs} must be between 0 and {vocab_size}")

    def _new_batches(self) -> tuple[RunningBatch, RunningBatch]:
        """Return the batches of rows without and with a grammar, which are the same unless there are CUDA graphs."""
        ends = end_ids(self._tokenizer)
        batch = RunningBatch(self._model, self._slots, ends)
        if not can_capture(self._model, device_of(self._model)):
            return batch, batch
        return batch, RunningBatch(self._model, self._slots, ends, graphs=False)

    def _batch_of(self, row: BatchRow) -> RunningBatch:
        return self._batch if row.grammar is None else self._grammar_batch

    def _work(self) -> None:
        while not self._queue.is_closed or self._queue.waiting or self._active:
            try:
                self._step()
            except Exception as error:  # an internal error, which must not affect later requests
                log.exception("internal error; all running requests end")
                for active in self._active.values():
                    active.request.answer(error, last=True)
                self._active.clear()
                self._batch, self._grammar_batch = self._new_batches()

    def _step(self) -> None:
        self._end_expired()
        self._remove_finished()
        for request in self._queue.take(self._slots - len(self._active), wait=not self._active):
            self._begin(request)
        results = self._batch.step()
        if self._grammar_batch is not self._batch:
            results |= self._grammar_batch.step()
        for row, result in results.items():
            try:
                self._answer(self._active[row], result)
            except Exception as error:  # for example of the tokenizer: only this request fails
                log.exception("a request failed")
                self._active[row].request.answer(error, last=True)

    def _begin(self, queued_request: QueuedRequest[GenerationRequest]) -> None:
        request = queued_request.payload
        if request.sampling.max_new_tokens == 0:
            queued_request.answer(TokenEvent(text="", finish="length"), last=True)
            return
        try:
            grammar = start_grammar(self._tokenizer, request.sampling, after=request.ids)
        except UserError as error:
            queued_request.answer(error, last=True)
            return
        row = BatchRow(request.ids, request.sampling, top=request.top_logprobs, grammar=grammar)
        text = TextRow(self._tokenizer, request.sampling.stop, prompt_ids=request.ids)
        self._active[row] = _ActiveRequest(queued_request, text)
        self._batch_of(row).add(row)

    @staticmethod
    def _answer(active: "_ActiveRequest", result: SampledToken | Exception) -> None:
        if isinstance(result, Exception):
            log.error("a request failed: %s", result)
            active.request.answer(result, last=True)
            return
        text = active.text.read(result)
        ends = result.finish is not None or active.text.finish == "stop"
        event = TokenEvent(text=text, token=result, finish=active.text.finish if ends else None)
        active.request.answer(event, last=ends)

    def _end_expired(self) -> None:
        texts = {active.request: active.text for active in self._active.values()}
        for request, why in self._queue.take_expired():
            request.answer(_expiry_event(why, texts.get(request)), last=True)

    def _remove_finished(self) -> None:
        for row in [row for row, active in self._active.items() if active.request.is_finished]:
            self._batch_of(row).remove(row)
            del self._active[row]


@dataclass
class _ActiveRequest:
    """The request of a row in the batch, and its text so far."""

    request: QueuedRequest[GenerationRequest]
    text: TextRow


def _expiry_event(why: Expiry, text: TextRow | None) -> TokenEvent | ShuttingDown:
    if why == "shutdown":
        return ShuttingDown("the server shut down before the request was finished")
    return TokenEvent(text="" if text is None else text.flush(), finish="time")

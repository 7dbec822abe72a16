"""Batching of requests with a single answer: prompt scores, translations, masks, classes and vectors.

Requests with equal settings are answered together.

While one batch is computed, the requests for the next one arrive. An idle batcher does not wait for more requests: it
answers the first one immediately. Under load, the batches are full.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from tercet.serve.engine.limits import Limits, ShuttingDown
from tercet.serve.engine.queue_worker import QueueWorker
from tercet.serve.engine.request_queue import QueuedRequest

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Batcher(QueueWorker[tuple[Item, Key]], Generic[Item, Key, Answer]):
    """Worker thread that answers queued items in batches; it starts immediately.

    Args:
        call: Function that takes items and their common settings, and returns one answer per item, in their order. It
            is called in the worker thread.
        limits: Limits of the worker; a batch has at most `limits.slots` items.
    """

    def __init__(self, call: Callable[[list[Item], Key], Sequence[Answer]], limits: Limits) -> None:
        self._call = call
        super().__init__(limits, thread_name="tercet-batcher")

    def submit(
        self, item: Item, key: Key, on_answer: Callable[[Answer | Exception], None]
    ) -> QueuedRequest[tuple[Item, Key]]:
        """Submit one item; may be called in any thread.

        Args:
            item: Item to answer.
            key: Settings; items with equal settings may be answered together.
            on_answer: Callback, called once in the worker thread: with the answer, with the exception of `call` for
                this item, with `TimeoutError` after `limits.seconds`, or with `ShuttingDown`. It is not called after
                the request has been cancelled.

        Returns:
            The request, whose `cancel` withdraws it.

        Raises:
            QueueFull: If the queue is full.
            ShuttingDown: If the batcher has been closed.
        """
        return self._queue.submit((item, key), on_answer)

    def _work(self) -> None:
        while True:
            requests = self._queue.take(
                self._limits.slots, wait=True, batchable=lambda first, candidate: first[1] == candidate[1]
            )
            if not requests and self._queue.is_closed:
                return
            self._end_expired()
            self._answer([request for request in requests if not request.is_finished])

    def _answer(self, requests: list[QueuedRequest[tuple[Item, Key]]]) -> None:
        if not requests:
            return
        try:
            answers = self._call([request.payload[0] for request in requests], requests[0].payload[1])
            if len(answers) != len(requests):
                raise ValueError(f"expected {len(requests)} answers, one per item, got {len(answers)}")
        except Exception as error:
            if len(requests) == 1:
                requests[0].answer(error, last=True)
                return
            # The error is not logged, because its message may quote a text of a client.
            log.warning("a batch of %d items failed; retrying each item separately", len(requests))
            for request in requests:
                self._end_expired()
                self._answer([] if request.is_finished else [request])
            return
        for request, answer in zip(requests, answers, strict=True):
            request.answer(answer, last=True)

    def _end_expired(self) -> None:
        for request, why in self._queue.take_expired():
            late = TimeoutError(f"the request took longer than {self._limits.seconds:g} s; try again under less load")
            request.answer(ShuttingDown() if why == "shutdown" else late, last=True)

"""Requests that are answered in one go (translations, masks, classes, vectors), those of equal settings as one batch.

While one batch is worked on the next one gathers, so nobody waits for company: a request that comes alone is answered
alone, and under load the batches are full.
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
    """One worker thread, which is started.

    Args:
        call: the answers to some items, in their order; it is called in the worker's thread.
        limits: at most `limits.slots` items go into one call.
    """

    def __init__(self, call: Callable[[list[Item], Key], Sequence[Answer]], limits: Limits) -> None:
        self._call = call
        super().__init__(limits, thread_name="tercet-batcher")

    def submit(
        self, item: Item, key: Key, on_answer: Callable[[Answer | Exception], None]
    ) -> QueuedRequest[tuple[Item, Key]]:
        """Ask for one item, with settings that compare equal where items may be answered together; in any thread.

        Args:
            on_answer: is called once, in the worker's thread: with the answer, with what `call` raised for this item
                alone, with `TimeoutError` after `limits.seconds`, or with `ShuttingDown`. Never after `cancel`.

        Raises:
            QueueFull, ShuttingDown: where the request is not taken in.
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
                raise ValueError(f"{len(requests)} items need as many answers, got {len(answers)}")
        except Exception as error:
            if len(requests) == 1:
                requests[0].answer(error, last=True)
                return
            # Not what went wrong: the message may quote a text.
            log.warning("%d items could not be answered together, and are tried alone", len(requests))
            for request in requests:
                self._end_expired()
                self._answer([] if request.is_finished else [request])
            return
        for request, answer in zip(requests, answers, strict=True):
            request.answer(answer, last=True)

    def _end_expired(self) -> None:
        for request, why in self._queue.take_expired():
            late = TimeoutError(
                f"the request took longer than {self._limits.seconds:g} s; try again when less is asked"
            )
            request.answer(ShuttingDown() if why == "shutdown" else late, last=True)

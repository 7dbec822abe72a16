"""What the Scheduler and the Batcher have in common: one thread that answers the requests of a bounded queue."""

from abc import ABC, abstractmethod
from threading import Thread, current_thread
from typing import Generic, Self

from tercet.limits import STALLED_SECONDS
from tercet.serve.engine.limits import Limits
from tercet.serve.engine.request_queue import Payload, RequestQueue


class QueueWorker(ABC, Generic[Payload]):
    """A worker thread and its queue, closed by `close` or at the end of a `with` block.

    The thread starts with `__init__`, so a subclass calls it last.
    """

    def __init__(self, limits: Limits, *, thread_name: str) -> None:
        self._limits = limits
        self._queue = RequestQueue[Payload](limits)
        self._thread = Thread(target=self._work, name=thread_name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> int:
        """How many requests are answered now."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return self._queue.waiting

    @property
    def is_alive(self) -> bool:
        """Whether its thread gets on: no step takes longer than a request may, and it lives until it is closed."""
        if not self._thread.is_alive():
            return self._queue.is_closed
        return self._queue.step_seconds < max(STALLED_SECONDS, self._limits.seconds)

    def close(self, *, seconds: float | None = None) -> None:
        """Take no more, answer those that were taken in (after `seconds` with `ShuttingDown`), end the thread."""
        self._queue.close(seconds=seconds)
        if current_thread() is not self._thread:
            self._thread.join()

    @abstractmethod
    def _work(self) -> None:
        """What the thread does; it returns once the queue is closed and everything in it is answered."""

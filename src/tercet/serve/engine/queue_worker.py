"""Base class of `Scheduler` and `Batcher`: a thread that answers the requests of a bounded queue."""

from abc import ABC, abstractmethod
from threading import Thread, current_thread
from typing import Generic, Self

from tercet.limits import STALLED_SECONDS
from tercet.serve.engine.limits import Limits
from tercet.serve.engine.request_queue import Payload, RequestQueue


class QueueWorker(ABC, Generic[Payload]):
    """A worker thread and its queue, closed by `close` or at the end of a `with` block.

    The thread starts in `__init__`, so subclasses must call `super().__init__` last.

    Args:
        limits: Limits of the queue and of each request.
        thread_name: Name of the thread.
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
        """Number of requests that are being processed."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return self._queue.waiting

    @property
    def is_alive(self) -> bool:
        """Liveness: True if the thread makes progress.

        False if the current step has taken longer than STALLED_SECONDS and than the time limit of a request, or if the
        thread ended before it was closed.
        """
        if not self._thread.is_alive():
            return self._queue.is_closed
        return self._queue.step_seconds < max(STALLED_SECONDS, self._limits.seconds)

    def close(self, *, seconds: float | None = None) -> None:
        """Accept no more requests, answer the current ones, and wait until the thread has ended.

        A call in the worker thread does not wait.

        Args:
            seconds: Time after which unfinished requests are answered with `ShuttingDown`; None for no limit.
        """
        self._queue.close(seconds=seconds)
        if current_thread() is not self._thread:
            self._thread.join()

    @abstractmethod
    def _work(self) -> None:
        """Run the thread until the queue is closed and all its requests are answered."""

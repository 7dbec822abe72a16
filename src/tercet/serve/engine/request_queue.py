"""A bounded queue between clients, in any thread, and one worker thread.

A `QueuedRequest` waits, is taken by the worker, and is finished once: by its last answer or by a cancellation.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, RLock
from typing import Any, Generic, Literal, TypeVar

from tercet.serve.engine.limits import Limits, QueueFull, ShuttingDown

log = logging.getLogger(__name__)
Payload = TypeVar("Payload")
Expiry = Literal["time", "shutdown"]  # time limit of the request, or of all requests at shutdown

RECENT = 32  # finished requests whose mean duration is used to estimate the waiting time


class QueuedRequest(Generic[Payload]):
    """A request in a `RequestQueue`; `is_finished` is True if no more answers will follow.

    Args:
        queue: Queue of the request.
        payload: Content of the request.
        on_answer: Callback for answers, called in the worker thread.
        deadline: Value of `time.monotonic` after which the request expires, in seconds.
    """

    def __init__(
        self, queue: "RequestQueue[Payload]", payload: Payload, on_answer: Callable[[Any], None], deadline: float
    ) -> None:
        self.payload, self.deadline, self.is_finished = payload, deadline, False
        self._queue, self._on_answer = queue, on_answer
        self._lock = RLock()  # held during the callback, so that there is no callback after `cancel`

    def cancel(self) -> None:
        """Prevent further answers; the worker stops computing them after its current step.

        May be called at any time in any thread, including in the callback. If the callback is running in another
        thread, the call waits for it.
        """
        with self._lock:
            if not self.is_finished:
                self._finish()

    def answer(self, answer: object, *, last: bool) -> None:
        """Call the callback with an answer, unless the request is finished.

        If the callback raises, the exception is logged and the request is cancelled; the worker continues.

        Args:
            answer: Argument of the callback.
            last: If True, the request is finished afterwards.
        """
        with self._lock:
            if self.is_finished:
                return
            if last:
                self._finish()
            try:
                self._on_answer(answer)
            except Exception:
                log.exception("the callback of an answer failed; its request is cancelled")
                self.cancel()

    def _finish(self) -> None:
        self.is_finished = True
        self._queue.discard(self)


class RequestQueue(Generic[Payload]):
    """Waiting and running requests of a worker, which ends when `is_closed` is True and no request is left."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._waiting = deque[QueuedRequest[Payload]]()
        self._running = dict[QueuedRequest[Payload], float]()  # start time of each
        self._durations = deque[float](maxlen=RECENT)
        self._condition = Condition()
        self.is_closed = False
        self._closing_time = math.inf
        self._step_start: float | None = None  # None while the worker waits for a request

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def step_seconds(self) -> float:
        """Seconds since the worker last took requests; 0 if it is waiting."""
        began = self._step_start
        return 0.0 if began is None else time.monotonic() - began

    def submit(self, payload: Payload, on_answer: Callable[[Any], None]) -> QueuedRequest[Payload]:
        """Append a request to the queue.

        Raises:
            QueueFull: If the number of unfinished requests has reached `limits.slots + limits.waiting`.
            ShuttingDown: If the queue is closed.
        """
        with self._condition:
            if self.is_closed:
                raise ShuttingDown
            if len(self._waiting) + len(self._running) >= self.limits.slots + self.limits.waiting:
                raise QueueFull(len(self._waiting), self._estimate_wait())
            request = QueuedRequest(self, payload, on_answer, time.monotonic() + self.limits.seconds)
            self._waiting.append(request)
            self._condition.notify_all()
        return request

    def take(
        self, limit: int, *, wait: bool, batchable: Callable[[Payload, Payload], bool] = lambda first, candidate: True
    ) -> list[QueuedRequest[Payload]]:
        """Take the first request and up to `limit` requests in total that are `batchable` with it.

        Args:
            limit: Maximum number of requests.
            wait: If True, wait for a request if the queue is empty and not closed.
            batchable: Function of the payloads of the first request and of a candidate, which returns whether they may
                be processed together.
        """
        with self._condition:
            self._step_start = None
            while wait and not self._waiting and not self.is_closed:
                self._condition.wait()
            self._step_start = time.monotonic()
            if not self._waiting or limit < 1:
                return []
            first = self._waiting[0].payload
            requests = [request for request in self._waiting if batchable(first, request.payload)][:limit]
            for request in requests:
                self._waiting.remove(request)
                self._running[request] = time.monotonic()
        return requests

    def take_expired(self) -> list[tuple[QueuedRequest[Payload], Expiry]]:
        """Return the requests whose time limit is over, with the reason, and remove waiting ones from the queue."""
        now = time.monotonic()
        expired: list[tuple[QueuedRequest[Payload], Expiry]] = []
        with self._condition:
            for request in (*self._waiting, *self._running):
                if now >= self._closing_time:
                    expired.append((request, "shutdown"))
                elif now >= request.deadline:
                    expired.append((request, "time"))
            for request, _ in expired:
                if request in self._waiting:
                    self._waiting.remove(request)
        return expired

    def discard(self, request: QueuedRequest[Payload]) -> None:
        """Remove a finished request; if it was running, its duration is used to estimate waiting times."""
        with self._condition:
            began = self._running.pop(request, None)
            if began is not None:
                self._durations.append(time.monotonic() - began)
            elif request in self._waiting:
                self._waiting.remove(request)

    def close(self, *, seconds: float | None) -> None:
        """Accept no more requests; requests unanswered after `seconds`, if not None, expire."""
        with self._condition:
            self.is_closed = True
            if seconds is not None:
                self._closing_time = min(self._closing_time, time.monotonic() + seconds)
            self._condition.notify_all()

    def _estimate_wait(self) -> int:
        """Return the estimated seconds until a new request is processed.

        The estimate uses recent durations and is at most the time limit.
        """
        usual = sum(self._durations) / max(1, len(self._durations))
        turns = (len(self._waiting) + 1) / self.limits.slots
        return max(1, math.ceil(min(usual * turns, self.limits.seconds)))

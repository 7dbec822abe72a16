"""The queue between those who ask, in any thread, and the one worker thread that answers; its length is bounded.

A `QueuedRequest` waits, is taken by the worker, and is finished once: by its last answer, or because it was cancelled.
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
Expiry = Literal["time", "shutdown"]  # a request's own time is up, or that of all at the end

RECENT = 32  # requests from which the time for the next ones is estimated


class QueuedRequest(Generic[Payload]):
    """One request. `is_finished` is True once no more answers will come.

    Args:
        payload: what is asked.
        on_answer: gets the answers, in the worker's thread.
        deadline: on the clock of `time.monotonic`, in seconds.
    """

    def __init__(
        self, queue: "RequestQueue[Payload]", payload: Payload, on_answer: Callable[[Any], None], deadline: float
    ) -> None:
        self.payload, self.deadline, self.is_finished = payload, deadline, False
        self._queue, self._on_answer = queue, on_answer
        self._lock = RLock()  # held while an answer is handed over, so that after `cancel` none is

    def cancel(self) -> None:
        """No more answers, from now on; what was begun ends with the worker's present step.

        It may be called at any time, in any thread, also where the answer arrives; elsewhere it waits until an answer
        that is just being handed over has been.
        """
        with self._lock:
            if not self.is_finished:
                self._finish()

    def answer(self, answer: object, *, last: bool) -> None:
        """Hand over an answer, unless the request is finished. No fault of the receiver's reaches the worker."""
        with self._lock:
            if self.is_finished:
                return
            if last:
                self._finish()
            try:
                self._on_answer(answer)
            except Exception:
                log.exception("an answer could not be told; its request is cancelled")
                self.cancel()

    def _finish(self) -> None:
        self.is_finished = True
        self._queue.discard(self)


class RequestQueue(Generic[Payload]):
    """Where requests wait for the worker, which ends once `is_closed` is True and none is left."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._waiting = deque[QueuedRequest[Payload]]()
        self._running = dict[QueuedRequest[Payload], float]()  # when each was taken
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
        """For how long the worker has been at work since it last took something; 0 where it waits."""
        began = self._step_start
        return 0.0 if began is None else time.monotonic() - began

    def submit(self, payload: Payload, on_answer: Callable[[Any], None]) -> QueuedRequest[Payload]:
        """A new request at the end of the queue.

        Raises:
            QueueFull, ShuttingDown: where it is not taken in.
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
        """The first in the queue and those behind it that are `batchable` with it, `limit` at most.

        Args:
            wait: for the first one, where there is none.
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
        """The requests whose time is up, and why; those that waited, whose turn will not come, wait no more."""
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
        """The request is finished."""
        with self._condition:
            began = self._running.pop(request, None)
            if began is not None:
                self._durations.append(time.monotonic() - began)
            elif request in self._waiting:
                self._waiting.remove(request)

    def close(self, *, seconds: float | None) -> None:
        """Take no more; what is not answered after `seconds`, where they are given, has expired."""
        with self._condition:
            self.is_closed = True
            if seconds is not None:
                self._closing_time = min(self._closing_time, time.monotonic() + seconds)
            self._condition.notify_all()

    def _estimate_wait(self) -> int:
        """How long it takes until a newcomer's turn, as long as requests take lately, within a request's time."""
        usual = sum(self._durations) / max(1, len(self._durations))
        turns = (len(self._waiting) + 1) / self.limits.slots
        return max(1, math.ceil(min(usual * turns, self.limits.seconds)))

"""The desk between those who ask, in any thread, and the one worker that answers: a line of bounded length.

A `Job` waits in line, is taken by the worker, and is over once: by its last answer, or because it was cancelled.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, RLock, Thread, current_thread
from typing import Any, Generic, Literal, TypeVar

from tercet.serve.limits import Closing, Full, Limits

log = logging.getLogger(__name__)
Work = TypeVar("Work")
Why = Literal["time", "closing"]

LATELY = 32  # jobs from which the time for the next ones is estimated


class Job(Generic[Work]):
    """One request. `over` is True once nothing more will be said.

    Args:
        work: what is asked.
        answer: is told the answers, in the worker's thread.
    """

    def __init__(self, desk: "Desk[Work]", work: Work, answer: Callable[[Any], None], deadline: float) -> None:
        self.work, self.deadline, self.over = work, deadline, False
        self._desk, self._answer = desk, answer
        self._lock = RLock()  # held while an answer is told, so that after `cancel` none is

    def cancel(self) -> None:
        """Nothing more is said, from now on; what was begun ends with the worker's present step.

        It may be called at any time, in any thread, also where the answer arrives; elsewhere it waits until an answer
        that is just being told is told.
        """
        with self._lock:
            if not self.over:
                self._end()

    def tell(self, answer: object, *, last: bool) -> None:
        """Say this, unless it is over. Nothing that goes wrong on the other side reaches the worker."""
        with self._lock:
            if self.over:
                return
            if last:
                self._end()
            try:
                self._answer(answer)
            except Exception:
                log.exception("an answer could not be told; its request is cancelled")
                self.cancel()

    def _end(self) -> None:
        self.over = True
        self._desk.leave(self)


class Desk(Generic[Work]):
    """Where jobs wait, and what the worker's thread is started and stopped by.

    Args:
        loop: what the worker does; it returns when `take` gives nothing and `closed` is True.
        name: the thread's.
    """

    def __init__(self, limits: Limits, loop: Callable[[], None], *, name: str) -> None:
        self.limits = limits
        self._line = deque[Job[Work]]()
        self._taken = dict[Job[Work], float]()  # when each was
        self._lately = deque[float](maxlen=LATELY)
        self._changed = Condition()
        self.closed = False
        self._until = math.inf
        self._thread = Thread(target=loop, name=name, daemon=True)

    def open(self) -> None:
        self._thread.start()

    @property
    def running(self) -> int:
        return len(self._taken)

    @property
    def waiting(self) -> int:
        return len(self._line)

    def submit(self, work: Work, answer: Callable[[Any], None]) -> Job[Work]:
        """A new job at the end of the line.

        Raises:
            Full, Closing: where it is not taken in.
        """
        with self._changed:
            if self.closed:
                raise Closing
            if len(self._line) + len(self._taken) >= self.limits.slots + self.limits.waiting:
                raise Full(len(self._line), self._retry_after())
            job = Job(self, work, answer, time.monotonic() + self.limits.seconds)
            self._line.append(job)
            self._changed.notify_all()
        return job

    def take(
        self, most: int, *, patient: bool, alike: Callable[[Work, Work], bool] = lambda one, other: True
    ) -> list[Job[Work]]:
        """The first in line and those behind that are `alike`, at most `most`; where `patient`, wait for the first."""
        with self._changed:
            while patient and not self._line and not self.closed:
                self._changed.wait()
            if not self._line or most < 1:
                return []
            first = self._line[0].work
            jobs = [job for job in self._line if alike(first, job.work)][:most]
            for job in jobs:
                self._line.remove(job)
                self._taken[job] = time.monotonic()
        return jobs

    def overdue(self) -> list[tuple[Job[Work], Why]]:
        """The jobs whose time is up, and why; those in line, whose turn will not come, stand in line no more."""
        now = time.monotonic()
        late: list[tuple[Job[Work], Why]] = []
        with self._changed:
            for job in (*self._line, *self._taken):
                why = self._late(job, now)
                if why is not None:
                    late.append((job, why))
            for job, _ in late:
                if job in self._line:
                    self._line.remove(job)
        return late

    def leave(self, job: Job[Work]) -> None:
        """The job is over."""
        with self._changed:
            began = self._taken.pop(job, None)
            if began is not None:
                self._lately.append(time.monotonic() - began)
            elif job in self._line:
                self._line.remove(job)

    def close(self, *, seconds: float | None) -> None:
        with self._changed:
            self.closed = True
            if seconds is not None:
                self._until = min(self._until, time.monotonic() + seconds)
            self._changed.notify_all()
        if current_thread() is not self._thread:
            self._thread.join()

    def _late(self, job: Job[Work], now: float) -> Why | None:
        return "closing" if now >= self._until else "time" if now >= job.deadline else None

    def _retry_after(self) -> int:
        """How long the line takes until a newcomer's turn, as long as jobs take lately, within a request's time."""
        usual = sum(self._lately) / max(1, len(self._lately))
        turns = (len(self._line) + 1) / self.limits.slots
        return max(1, math.ceil(min(usual * turns, self.limits.seconds)))

"""Requests that are answered in one go (translations, masks, classes, vectors), those of equal settings together.

While one batch is worked on the next one gathers, so nobody waits for company: a request that comes alone is answered
alone, and under load the batches are full.
"""

import logging
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tercet.serve.desk import Desk, Job
from tercet.serve.limits import Closing, Limits

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Key, Answer]):
    """One worker thread, which is started.

    Args:
        call: the answers to some items, in their order; it is called in the worker's thread.
        limits: at most `limits.slots` items go into one call.
    """

    def __init__(self, call: Callable[[list[Item], Key], list[Answer]], limits: Limits) -> None:
        self._call, self._limits = call, limits
        self._desk = Desk[tuple[Item, Key]](limits, self._work, name="tercet-batcher")
        self._desk.open()

    def __enter__(self) -> "Batcher[Item, Key, Answer]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> int:
        return self._desk.running

    @property
    def waiting(self) -> int:
        return self._desk.waiting

    def submit(self, item: Item, key: Key, on_answer: Callable[[Answer | Exception], None]) -> Job[tuple[Item, Key]]:
        """Ask for one item, with settings that compare equal where items may be answered together; in any thread.

        Args:
            on_answer: is called once, in the worker's thread: with the answer, with what `call` raised for this item
                alone, with `TimeoutError` after `limits.seconds`, or with `Closing`. Never after `Job.cancel`.

        Raises:
            Full, Closing: where the request is not taken in.
        """
        return self._desk.submit((item, key), on_answer)

    def close(self, *, seconds: float | None = None) -> None:
        """Take no more, answer those that wait (until `seconds` are over; then they get `Closing`), end the thread."""
        self._desk.close(seconds=seconds)

    def _work(self) -> None:
        while True:
            jobs = self._desk.take(self._limits.slots, patient=True, alike=lambda one, other: one[1] == other[1])
            if not jobs and self._desk.closed:
                return
            self._end_the_late()
            self._answer([job for job in jobs if not job.over])

    def _answer(self, jobs: list[Job[tuple[Item, Key]]]) -> None:
        if not jobs:
            return
        try:
            answers = self._call([job.work[0] for job in jobs], jobs[0].work[1])
            if len(answers) != len(jobs):
                raise ValueError(f"{len(jobs)} items need as many answers, got {len(answers)}")
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].tell(error, last=True)
                return
            # Not what went wrong: the message may quote a text.
            log.warning("%d items could not be answered together, and are tried alone", len(jobs))
            for job in jobs:
                self._end_the_late()
                self._answer([] if job.over else [job])
            return
        for job, answer in zip(jobs, answers, strict=True):
            job.tell(answer, last=True)

    def _end_the_late(self) -> None:
        for job, why in self._desk.overdue():
            late = TimeoutError(
                f"the request took longer than {self._limits.seconds:g} s; try again when less is asked"
            )
            job.tell(Closing() if why == "closing" else late, last=True)

"""From a worker's thread to a client's coroutine: its answers as they come, and an end to them where time runs out."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from tercet.serve.engine import QueueFull
from tercet.serve.registry import Cancellable

Answer = TypeVar("Answer")
Submit = Callable[[Callable[[Answer | Exception], None]], Cancellable]
TIMEOUT_MESSAGE = "the answer took longer than {:g} seconds; ask for less at once, or try again later"
MAX_ANSWERS_PER_BATCH = 16  # answers that are handed over together: a millisecond, for which others wait


async def worker_answers(
    submits: Sequence[Submit[Answer]],
    *,
    max_running: int,
    seconds: float,
    is_last: Callable[[Answer], bool],
    is_streamed: bool = False,
) -> AsyncGenerator[tuple[int, Answer]]:
    """What a worker answers to each part of a request, with the part's number, in the order in which it comes.

    Close it (`contextlib.aclosing`): then what is still under way is cancelled.

    Args:
        submits: each hands one part to the worker, with the function that takes the worker's answers to it.
        max_running: so many are with the worker at a time, so that a long list leaves room for others.
        seconds: the most that all of them together may take.
        is_last: whether an answer ends its part.
        is_streamed: each answer is handed over as it comes. Otherwise some of a part together, the last with them:
            whatever wakes the client's thread takes Python's lock from the worker, in the middle of a step that others
            wait for too.

    Raises:
        TimeoutError: where they take longer.
        QueueFull, ShuttingDown: where the worker takes none of them.
        Exception: what the worker answers.
    """
    loop, batch_size = asyncio.get_running_loop(), 1 if is_streamed else MAX_ANSWERS_PER_BATCH
    batches = asyncio.Queue[tuple[int, list[Answer | Exception]]]()
    running = dict[int, Cancellable]()
    deadline = loop.time() + seconds
    pending = deque(enumerate(submits))

    try:
        while True:
            while pending and len(running) < max_running:
                number, submit = pending[0]
                try:
                    running[number] = submit(_listener(number, batches, loop, batch_size, is_last))
                except QueueFull:
                    if not running:
                        raise
                    break  # a place comes free with one of our own
                pending.popleft()
            if not running:
                return
            try:
                async with asyncio.timeout_at(deadline):
                    number, answers = await batches.get()
            except TimeoutError:
                raise TimeoutError(TIMEOUT_MESSAGE.format(seconds)) from None
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
                if is_last(answer):
                    del running[number]
                yield number, answer
    finally:
        for request in running.values():
            request.cancel()


def _listener(
    number: int,
    batches: asyncio.Queue[tuple[int, list[Answer | Exception]]],
    loop: asyncio.AbstractEventLoop,
    batch_size: int,
    is_last: Callable[[Answer], bool],
) -> Callable[[Answer | Exception], None]:
    """Return a function for the worker's thread, which hands up to `batch_size` answers over together."""
    batch: list[Answer | Exception] = []

    def on_answer(answer: Answer | Exception) -> None:
        nonlocal batch
        batch.append(answer)
        if len(batch) == batch_size or isinstance(answer, Exception) or is_last(answer):
            answers, batch = batch, []
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(batches.put_nowait, (number, answers))

    return on_answer

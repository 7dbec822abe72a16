"""Answers from a worker thread to the coroutine of a client, with a time limit."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from tercet.serve.engine import QueueFull
from tercet.serve.registry import Cancellable

Answer = TypeVar("Answer")
Submit = Callable[[Callable[[Answer | Exception], None]], Cancellable]
TIMEOUT_MESSAGE = "the response took longer than {:g} seconds; request less at once, or try again later"
MAX_ANSWERS_PER_BATCH = 16  # answers that are transferred together; they take a millisecond of the event loop


async def worker_answers(
    submits: Sequence[Submit[Answer]],
    *,
    max_running: int,
    seconds: float,
    is_last: Callable[[Answer], bool],
    is_streamed: bool = False,
) -> AsyncGenerator[tuple[int, Answer]]:
    """Yield a worker's answers to the parts of a request as they arrive, each after the number of its part.

    Close the generator (`contextlib.aclosing`) to cancel unfinished parts.

    Args:
        submits: Functions that submit one part each; their argument is a callback for the answers of the part.
        max_running: Maximum number of parts in the worker, so that a long list leaves capacity for other requests.
        seconds: Time limit of all parts together.
        is_last: Function that returns whether an answer is the last of its part.
        is_streamed: If True, each answer is transferred to the event loop immediately. Otherwise up to
            MAX_ANSWERS_PER_BATCH answers of a part are transferred together, because each transfer lets the thread of
            the event loop take the interpreter lock from the worker, during a step that other requests wait for.

    Raises:
        TimeoutError: If the time limit is exceeded.
        QueueFull: If the queue is full and no part of this request is running.
        ShuttingDown: If the worker shuts down before the last answer.
        Exception: If the worker answers a part with an exception.
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
                    break  # a slot becomes free when one of these parts ends
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
    """Return a callback for the worker thread, which transfers up to `batch_size` answers together."""
    batch: list[Answer | Exception] = []

    def on_answer(answer: Answer | Exception) -> None:
        nonlocal batch
        batch.append(answer)
        if len(batch) == batch_size or isinstance(answer, Exception) or is_last(answer):
            answers, batch = batch, []
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(batches.put_nowait, (number, answers))

    return on_answer

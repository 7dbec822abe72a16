"""From a worker's thread to a client's coroutine: the parts of an answer as they come, and an end to them where the
client goes, time runs out, or the worker fails."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from starlette.requests import Request

from tercet.serve.limits import Full

Part = TypeVar("Part")
Answer = TypeVar("Answer")


class Job(Protocol):
    """What a worker has been given to do."""

    def cancel(self) -> None: ...


Submit = Callable[[Callable[[Part | Exception], None]], Job]


class Gone(Exception):
    """The client went away; there is nobody to answer."""


async def parts(
    submits: Sequence[Submit[Part]], *, at_once: int, seconds: float, last: Callable[[Part], bool]
) -> AsyncGenerator[tuple[int, Part]]:
    """What a worker says to each of a request's asks, with its number, in the order in which it comes.

    Close it (`contextlib.aclosing`): then what is still under way is cancelled.

    Args:
        submits: each hands one ask to the worker, with the function that takes what the worker says to it.
        at_once: so many are with the worker at a time, so that a long list leaves room for others.
        seconds: the most that all of them together may take.
        last: whether a part ends its ask.

    Raises:
        TimeoutError: where they take longer.
        Full, Closing: where the worker takes none of them.
        Exception: what the worker says.
    """
    loop = asyncio.get_running_loop()
    arrived = asyncio.Queue[tuple[int, Part | Exception]]()
    jobs = dict[int, Job]()
    deadline = loop.time() + seconds
    rest = deque(enumerate(submits))

    def listener(number: int) -> Callable[[Part | Exception], None]:
        def on_part(part: Part | Exception) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(arrived.put_nowait, (number, part))

        return on_part

    try:
        while True:
            while rest and len(jobs) < at_once:
                number, submit = rest[0]
                try:
                    jobs[number] = submit(listener(number))
                except Full:
                    if not jobs:
                        raise
                    break  # a place comes free with one of our own
                rest.popleft()
            if not jobs:
                return
            try:
                async with asyncio.timeout_at(deadline):
                    number, part = await arrived.get()
            except TimeoutError:
                raise late(seconds) from None
            if isinstance(part, Exception):
                raise part
            if last(part):
                del jobs[number]
            yield number, part
    finally:
        for job in jobs.values():
            job.cancel()


def late(seconds: float) -> TimeoutError:
    return TimeoutError(f"the answer took longer than {seconds:g} seconds; ask for less at once, or try again later")


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What `work` comes to; it is cancelled where the client goes away before.

    Raises:
        Gone: then.
    """
    return await first_of(work, gone(request.receive))


async def first_of(work: Coroutine[Any, Any, Answer], end: Coroutine[Any, Any, None]) -> Answer:
    """What `work` comes to, or `Gone` where `end` comes first; neither outlives this call."""
    working, going = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait({working, going}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        return working.result()
    finally:
        for task in (working, going):
            task.cancel()
        await asyncio.gather(working, going, return_exceptions=True)


async def gone(receive: Callable[[], Awaitable[Any]]) -> None:
    """Ends when the client does: after its request it has nothing else to say."""
    while (await receive())["type"] != "http.disconnect":
        pass

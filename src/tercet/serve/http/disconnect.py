"""Cancel the work for a client that disconnects."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

Result = TypeVar("Result")
CLIENT_GONE = 499  # nginx's status for a client that disconnected; it is only logged


class ClientGone(Exception):
    """The client has disconnected."""


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`, which is cancelled if the client disconnects.

    Raises:
        ClientGone: If the client disconnects first.
    """
    return await race(work, disconnected(request.receive))


async def race(work: Coroutine[Any, Any, Result], end: Coroutine[Any, Any, None]) -> Result:
    """Return the result of `work`, and cancel `end`.

    Raises:
        ClientGone: If `end` finishes first; `work` is then cancelled.
    """
    working, ending = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, ending):
            task.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)


async def disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    """Wait until the client disconnects, after the whole request has been received."""
    while (await receive())["type"] != "http.disconnect":
        pass

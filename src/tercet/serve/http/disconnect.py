"""Work for a client ends where the client goes away."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

Result = TypeVar("Result")
CLIENT_GONE = 499  # nobody reads this status; nginx's number for a client that went away


class ClientGone(Exception):
    """The client went away; there is nobody to answer."""


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` comes to; it is cancelled where the client goes away before.

    Raises:
        ClientGone: then.
    """
    return await race(work, disconnected(request.receive))


async def race(work: Coroutine[Any, Any, Result], end: Coroutine[Any, Any, None]) -> Result:
    """What `work` comes to, or `ClientGone` where `end` comes first; neither outlives this call."""
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
    """Ends when the client does: after its request it has nothing else to say."""
    while (await receive())["type"] != "http.disconnect":
        pass

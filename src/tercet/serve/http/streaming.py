"""Server-sent events: the parts of a response as lines of JSON, followed by `[DONE]`.

A client that stops reading delays no other client, because the worker does not wait until its tokens are sent. Its
stream ends if nothing could be sent for some time.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tercet.serve.http.disconnect import ClientGone, disconnected, race, unless_disconnected
from tercet.serve.http.errors import INTERNAL_ERROR, APIError, to_api_error

Event = dict[str, Any]


class EventStream(Response):
    """A response of server-sent events.

    Args:
        first: The first event.
        rest: The following events; always closed at the end of the response.
        patience: Seconds after which a client that accepts no data is treated as disconnected.
    """

    media_type = "text/event-stream"

    def __init__(self, first: Event, rest: AsyncGenerator[Event], *, patience: float) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first, self._rest, self._patience = first, rest, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await race(self._send(send), disconnected(receive))
        except ClientGone:
            return  # the client has disconnected
        finally:
            await self._rest.aclose()

    async def _send(self, send: Send) -> None:
        async def send_data(data: bytes, *, more: bool = True) -> None:
            try:
                async with asyncio.timeout(self._patience):
                    await send({"type": "http.response.body", "body": data, "more_body": more})
            except TimeoutError:
                raise ClientGone from None
            await asyncio.sleep(0)  # so that a disconnect is noticed during a burst of events

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send_data(_encode(self._first))
        failure: Exception | None = None
        try:
            async for event in self._rest:
                await send_data(_encode(event))
        except ClientGone:
            raise
        except Exception as error:  # the status has been sent, so the error is sent as an event
            api_error = to_api_error(error)
            await send_data(_encode((api_error or APIError(500, INTERNAL_ERROR)).body))
            failure = None if api_error is not None else error
        await send_data(b"data: [DONE]\n\n", more=False)
        if failure is not None:
            raise failure


def _encode(event: Event) -> bytes:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


async def start_stream(request: Request, events: AsyncGenerator[Event], *, patience: float) -> EventStream:
    """Wait for the first event and return the stream.

    An error before the first event is raised here, so that the response can have the status of the error.

    Args:
        request: Request of the client.
        events: Events of the response.
        patience: Seconds after which a client that accepts no data is treated as disconnected.

    Raises:
        ClientGone: If the client disconnects before the first event.
    """
    try:
        first = await unless_disconnected(request, anext(events))  # type: ignore[arg-type]
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, events, patience=patience)

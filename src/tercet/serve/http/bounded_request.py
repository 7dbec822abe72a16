"""Requests with limits: a body must be JSON of limited size, and must arrive within a limited time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any

from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tercet.limits import MAX_BODIES_BYTES
from tercet.serve.http.context import service_of
from tercet.serve.http.disconnect import CLIENT_GONE, ClientGone
from tercet.serve.http.errors import APIError

MAX_READ_FACTOR = 16  # times the limit: a larger body is not read to its end, and its connection is closed


class BoundedRequest(Request):
    """A request with a JSON body of limited size and duration; call `close_body` after the response."""

    _body_bytes = 0

    def close_body(self) -> None:
        """Subtract the size of the body from the total of all requests."""
        service_of(self).body_bytes -= self._body_bytes
        self._body_bytes = 0

    def _reserve_bytes(self, size: int) -> None:
        service = service_of(self)
        if service.body_bytes + size > MAX_BODIES_BYTES:
            headers = {"Connection": "close", "Retry-After": "1"}
            raise APIError(
                503,
                "the bodies of current requests exceed the memory limit; try again in 1 s",
                code="overloaded",
                headers=headers,
            )
        service.body_bytes += size
        self._body_bytes += size

    async def stream(self) -> AsyncGenerator[bytes]:
        rules = service_of(self).rules
        limit, size = rules.max_body, 0
        close = {"Connection": "close"}  # for a body that is not read completely
        if (content_length := int(self.headers.get("content-length", "0"))) > limit and "expect" in self.headers:
            raise _too_large(limit, close)  # the client has not sent it yet
        chunks = super().stream()
        try:
            async with asyncio.timeout(rules.body_seconds):
                async for chunk in chunks:
                    size += len(chunk)
                    if size > MAX_READ_FACTOR * limit:
                        raise _too_large(limit, close)
                    if max(size, content_length) <= limit:
                        self._reserve_bytes(len(chunk))
                        yield chunk
            # The body was read to its end: a client whose connection is closed while it sends sees no response.
            if size > limit:
                raise _too_large(limit)
        except TimeoutError:
            message = f"the body was not received within {rules.body_seconds:g} seconds; send the request again"
            raise APIError(408, message, code="timeout", headers=close) from None
        except ClientDisconnect:
            raise ClientGone from None
        finally:
            await chunks.aclose()

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise APIError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


class Route(APIRoute):
    """A route that limits its requests (`BoundedRequest`) and does not answer a client that has disconnected."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if request.method == "POST" and kind != "application/json":
                message = "the body must be JSON; send the header Content-Type: application/json"
                raise APIError(415, message, code="not_json")
            bounded = BoundedRequest(request.scope, request.receive)
            try:
                return await answer(bounded)
            except ClientGone:
                return Response(status_code=CLIENT_GONE)
            finally:
                bounded.close_body()

        return handle


def _too_large(limit: int, headers: Mapping[str, str] | None = None) -> APIError:
    return APIError(413, f"the body exceeds {limit:,} bytes; send less at once", code="too_large", headers=headers)

"""What a body may be: JSON, so many bytes, there in so many seconds."""

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

MAX_READ_FACTOR = 16  # times as much as is allowed is read and dropped, before the connection is cut


class BoundedRequest(Request):
    """A request whose body is bounded in size and time, and is JSON; close it once it is answered."""

    _body_bytes = 0

    def close_body(self) -> None:
        service_of(self).body_bytes -= self._body_bytes
        self._body_bytes = 0

    def _reserve_bytes(self, size: int) -> None:
        service = service_of(self)
        if service.body_bytes + size > MAX_BODIES_BYTES:
            headers = {"Connection": "close", "Retry-After": "1"}
            raise APIError(503, "too much is being asked at once; try again in 1 s", code="overloaded", headers=headers)
        service.body_bytes += size
        self._body_bytes += size

    async def stream(self) -> AsyncGenerator[bytes]:
        rules = service_of(self).rules
        limit, size = rules.max_body, 0
        close = {"Connection": "close"}  # of what is not read to its end
        if (content_length := int(self.headers.get("content-length", "0"))) > limit and "expect" in self.headers:
            raise _too_large(limit, close)  # it was not sent yet
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
            # Read to its end, though none of it was kept: who is cut off while sending sees no answer.
            if size > limit:
                raise _too_large(limit)
        except TimeoutError:
            message = f"the request did not come whole within {rules.body_seconds:g} seconds; send it again"
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
    """A route whose requests are bounded, and that answers nobody where the client has gone."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if request.method == "POST" and kind != "application/json":
                message = "a request is JSON; send it with the header Content-Type: application/json"
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
    return APIError(413, f"a request has at most {limit:,} bytes; send less at once", code="too_large", headers=headers)

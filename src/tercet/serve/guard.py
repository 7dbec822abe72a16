"""Before any route: who may ask, under which name, how much at once; and after it: a line in the log, and the counts.

A page on another site can lead a browser here under a name of its own, so a server that is for this machine alone
answers only to names of this machine (DNS rebinding). The key is compared in constant time and written nowhere.
"""

import asyncio
import hmac
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tercet.inspect.explorer.server import is_loopback
from tercet.serve.log import Log
from tercet.serve.metrics import Metrics
from tercet.serve.parts import Gone
from tercet.serve.refusals import Refused

OPEN = ("/", "/health")  # without the key: they tell nothing of the models
OTHER = "other"  # the route of what has none
READ_ON = 16  # times as much as is allowed is read and dropped, before the line is cut
GONE = 499  # nobody reads this status; nginx's number for a client that went away


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Who may ask, and how much.

    Attributes:
        key: what requests must bring as a bearer's token; None asks for none.
        local: whether only names of this machine are answered.
        origins: of pages in browsers that may read the answers; "*" is any.
        max_body: bytes of a request.
        body_seconds: in which it must have come.
    """

    key: str | None = field(default=None, repr=False)
    local: bool = True
    origins: tuple[str, ...] = ()
    max_body: int = 1 << 20
    body_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise ValueError("the key must be printable ASCII, and not empty")
        if self.max_body < 1:
            raise ValueError(f"max_body={self.max_body} must be 1 byte or more")


@dataclass
class Told:
    """What there is to say of a request once it is answered."""

    began: float = field(default_factory=time.perf_counter)
    model: str | None = None
    read: int = 0  # tokens of the prompt
    wrote: int = 0


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, *, rules: Rules, metrics: Metrics, log: Log) -> None:
        self.app, self.rules, self.metrics, self.log = app, rules, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = Told()
        scope.setdefault("state", {})["told"] = told
        status = GONE

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        try:
            refused = self._refused(Request(scope))
            await (self.app if refused is None else refused.response())(scope, receive, sending)
        except Exception:
            status = 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", OTHER)
            seconds = time.perf_counter() - told.began
            self.metrics.answered(route, status, seconds)
            self.log.request(scope["method"], scope["path"], status, seconds, told.model, told.read, told.wrote)

    def _refused(self, request: Request) -> Refused | None:
        named = request.headers.get("host", "")
        name = named[1:].partition("]")[0] if named.startswith("[") else named.partition(":")[0]
        if self.rules.local and not is_loopback(name.lower()):
            message = f"{named[:80]!r} is not a name of this machine; use the address that the server printed"
            return Refused(403, message, code="wrong_host")
        if self.rules.key is None or request.url.path in OPEN:
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.rules.key.encode()):
            return None
        why = "this server asks for a key" if not given else "the key is not the server's"
        message = f"{why}; send the header Authorization: Bearer KEY"
        return Refused(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


class Question(Request):
    """A request whose body is bounded in size and time, and is JSON."""

    rules: Rules

    async def stream(self) -> AsyncGenerator[bytes]:
        limit, size = self.rules.max_body, 0
        close = {"Connection": "close"}  # of what is not read to its end
        if (told := int(self.headers.get("content-length", "0"))) > limit and "expect" in self.headers:
            raise self._too_large(close)  # it was not sent yet
        chunks = super().stream()
        try:
            async with asyncio.timeout(self.rules.body_seconds):
                async for chunk in chunks:
                    size += len(chunk)
                    if size > READ_ON * limit:
                        raise self._too_large(close)
                    if max(size, told) <= limit:
                        yield chunk
            # Read to its end, though none of it was kept: who is cut off while sending sees no answer.
            if size > limit:
                raise self._too_large()
        except TimeoutError:
            message = f"the request did not come whole within {self.rules.body_seconds:g} seconds; send it again"
            raise Refused(408, message, code="timeout", headers=close) from None
        except ClientDisconnect:
            raise Gone from None
        finally:
            await chunks.aclose()

    def _too_large(self, headers: Mapping[str, str] | None = None) -> Refused:
        message = f"a request has at most {self.rules.max_body:,} bytes; send less at once"
        return Refused(413, message, code="too_large", headers=headers)

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise Refused(400, f"the body is not valid JSON: {error}", code="invalid_json") from None


def route_class(rules: Rules) -> type[APIRoute]:
    """Routes whose requests are `Question`s."""

    class Asking(Question):
        pass

    Asking.rules = rules

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()

            async def handle(request: Request) -> Response:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if request.method == "POST" and kind != "application/json":
                    message = "a request is JSON; send it with the header Content-Type: application/json"
                    raise Refused(415, message, code="not_json")
                try:
                    return await answer(Asking(request.scope, request.receive))
                except Gone:
                    return Response(status_code=GONE)

            return handle

    return Route

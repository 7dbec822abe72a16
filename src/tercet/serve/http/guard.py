"""Before any route: who may ask, under which name and from whose page; and after it: a line in the log, and the counts.

The key is compared in constant time and written nowhere; nor is anything else that a client made up, for it may be the
key in a wrong place.
"""

import hmac
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tercet.limits import BODY_SECONDS, MAX_BODY_BYTES
from tercet.serve.http.disconnect import CLIENT_GONE
from tercet.serve.http.errors import APIError
from tercet.serve.http.log import ServerLog
from tercet.serve.http.metrics import ServerMetrics
from tercet.serve.http.page_files import page_paths
from tercet.web.access import SECURITY_HEADERS, AllowedNames

OPEN_PATHS = ("/health", "/ready", *page_paths())  # without the key: they say nothing of the models
OTHER_LABEL = "other"  # the route of what has none
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT")
REMEDIES = {
    "wrong_host": "use the address that the server printed, or start it with --allow-host",
    "wrong_origin": "start the server with --cors-origin to let them",
}


@dataclass(frozen=True, kw_only=True)
class AccessRules:
    """Who may ask, and how much.

    Attributes:
        key: what requests must bring as a bearer's token; None asks for none.
        names: under which the server may be asked, and by whose pages.
        max_body: bytes of a request.
        body_seconds: in which it must have come.
    """

    key: str | None = field(default=None, repr=False)
    names: AllowedNames = field(default_factory=AllowedNames)
    max_body: int = MAX_BODY_BYTES
    body_seconds: float = BODY_SECONDS

    def __post_init__(self) -> None:
        key = self.key
        if key is not None and not (key.isascii() and key.isprintable() and key == key.strip() != ""):
            raise ValueError("the key must be printable ASCII, not empty, and without spaces around it")
        if self.max_body < 1:
            raise ValueError(f"max_body={self.max_body} must be 1 byte or more")


@dataclass
class RequestStats:
    """What the log and the counts say of a request once it is answered."""

    began: float = field(default_factory=time.perf_counter)
    model: str | None = None
    prompt_tokens: int = 0
    new_tokens: int = 0


class Guard:
    """An ASGI application around another.

    Args:
        paths: that there are; the log names no others.
    """

    def __init__(
        self, app: ASGIApp, *, rules: AccessRules, metrics: ServerMetrics, log: ServerLog, paths: Sequence[str]
    ) -> None:
        self.app, self.rules, self.metrics, self.log, self.paths = app, rules, metrics, log, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stats = RequestStats()
        scope.setdefault("state", {})["stats"] = stats
        status = CLIENT_GONE

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=list(message["headers"]))
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                message["headers"] = headers.raw
            await send(message)

        try:
            error = self._access_error(Request(scope))
            await (self.app if error is None else error.response())(scope, receive, send_noting_status)
        except Exception:
            status = 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", OTHER_LABEL)
            seconds = time.perf_counter() - stats.began
            self.metrics.observe_request(route, status, seconds)
            method = scope["method"] if scope["method"] in METHODS else OTHER_LABEL
            path = scope["path"] if scope["path"] in self.paths else route
            self.log.request(
                method, path, status, seconds,
                model=stats.model, prompt_tokens=stats.prompt_tokens, new_tokens=stats.new_tokens,
            )  # fmt: skip

    def _access_error(self, request: Request) -> APIError | None:
        if (rejection := self.rules.names.check_headers(request.headers)) is not None:
            return APIError(403, f"{rejection.message}; {REMEDIES[rejection.code]}", code=rejection.code)
        if self.rules.key is None or request.url.path in OPEN_PATHS:
            return None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self.rules.key.encode()):
            return None
        why = "this server asks for a key" if not key else "the key is not the server's"
        message = f"{why}; send the header Authorization: Bearer KEY"
        return APIError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

"""Access control before any route (key, host name, origin), and logging and metrics after it.

The key is compared in constant time and never logged. No other text of a client is logged either, because it could be
the key in a wrong place.
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

OPEN_PATHS = ("/health", "/ready", *page_paths())  # accessible without a key; they contain nothing about the models
OTHER_LABEL = "other"  # label for unknown routes and methods
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT")
REMEDIES = {
    "wrong_host": "use the address that the server printed, or start it with --allow-host",
    "wrong_origin": "start the server with --cors-origin to allow it",
}


@dataclass(frozen=True, kw_only=True)
class AccessRules:
    """Access rules and limits of request bodies.

    Attributes:
        key: Required bearer token; None if no key is required.
        names: Allowed host names and origins.
        max_body: Maximum size of a body in bytes.
        body_seconds: Maximum time for receiving a body in seconds.

    Raises:
        ValueError: If the key is empty, is not printable ASCII, or has leading or trailing spaces, or if `max_body` is
            below 1.
    """

    key: str | None = field(default=None, repr=False)
    names: AllowedNames = field(default_factory=AllowedNames)
    max_body: int = MAX_BODY_BYTES
    body_seconds: float = BODY_SECONDS

    def __post_init__(self) -> None:
        key = self.key
        if key is not None and not (key.isascii() and key.isprintable() and key == key.strip() != ""):
            raise ValueError("the key must be printable ASCII, not empty, without leading or trailing spaces")
        if self.max_body < 1:
            raise ValueError(f"max_body={self.max_body} must be 1 byte or more")


@dataclass
class RequestStats:
    """Values of a request for the log and the metrics."""

    began: float = field(default_factory=time.perf_counter)
    model: str | None = None
    prompt_tokens: int = 0
    new_tokens: int = 0


class Guard:
    """Middleware for access control, logging and metrics.

    Args:
        app: The inner application.
        rules: Access rules.
        metrics: Metrics of the server.
        log: Log of the server.
        paths: Registered paths. Other paths are not logged; the log contains their route instead, or "other".
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
        why = "this server requires an API key" if not key else "the API key is wrong"
        message = f"{why}; send the header Authorization: Bearer KEY"
        return APIError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

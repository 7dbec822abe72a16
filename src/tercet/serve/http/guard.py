"""Before any route: who may ask, and under which name; and after it: a line in the log, and the counts.

A page on another site can lead a browser here under a name of its own, so a server that is for this machine alone
answers only to names of this machine (DNS rebinding). The key is compared in constant time and written nowhere.
"""

import hmac
import time
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tercet.loopback import names_loopback
from tercet.serve.http.disconnect import CLIENT_GONE
from tercet.serve.http.errors import APIError
from tercet.serve.http.log import ServerLog
from tercet.serve.http.metrics import ServerMetrics

OPEN = ("/", "/health")  # without the key: they say nothing of the models
OTHER = "other"  # the route of what has none


@dataclass(frozen=True, kw_only=True)
class AccessRules:
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
class RequestStats:
    """What the log and the counts say of a request once it is answered."""

    began: float = field(default_factory=time.perf_counter)
    model: str | None = None
    prompt_tokens: int = 0
    new_tokens: int = 0


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, *, rules: AccessRules, metrics: ServerMetrics, log: ServerLog) -> None:
        self.app, self.rules, self.metrics, self.log = app, rules, metrics, log

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
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        try:
            error = self._access_error(Request(scope))
            await (self.app if error is None else error.response())(scope, receive, send_noting_status)
        except Exception:
            status = 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", OTHER)
            seconds = time.perf_counter() - stats.began
            self.metrics.observe_request(route, status, seconds)
            self.log.request(
                scope["method"], scope["path"], status, seconds,
                model=stats.model, prompt_tokens=stats.prompt_tokens, new_tokens=stats.new_tokens,
            )  # fmt: skip

    def _access_error(self, request: Request) -> APIError | None:
        host = request.headers.get("host", "")
        if self.rules.local and not names_loopback(host):
            message = f"{host[:80]!r} is not a name of this machine; use the address that the server printed"
            return APIError(403, message, code="wrong_host")
        if self.rules.key is None or request.url.path in OPEN:
            return None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self.rules.key.encode()):
            return None
        why = "this server asks for a key" if not key else "the key is not the server's"
        message = f"{why}; send the header Authorization: Bearer KEY"
        return APIError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

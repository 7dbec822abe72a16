"""Serve a local web page over HTTP: its files, and a POST request for each query.

Requests from pages of other sites are rejected. The Host header of a request must be a name of this machine, and its
Origin header, if any, must be the same host; a page cannot change these headers. The body of a query must be JSON,
which a form on another page cannot send.
"""

import asyncio
import json
import webbrowser
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tercet.config import UserError
from tercet.limits import BODY_SECONDS, EXPLORER_CONNECTIONS, MAX_ERROR_CHARACTERS
from tercet.loopback import LOOPBACK, is_loopback
from tercet.messages import print_note
from tercet.web.access import SECURITY_HEADERS, AllowedNames
from tercet.web.page_files import policy, type_of
from tercet.web.server import BoundedServer, open_socket

PORTS_TRIED = 20  # ports that are tried after the requested one
MAX_BODY_BYTES = 1_000_000  # bytes of a query
SEND_TIMEOUT = 60.0  # seconds after which a browser that reads nothing is disconnected
Answer = Callable[[str, Any], Response]  # (name of a query, body) -> response; called in a thread


def open_page(port: int, *, host: str = LOOPBACK) -> tuple[Any, str]:
    """Open a socket at the first free port from `port` on, and return it with the page's address.

    Args:
        port: First port to try; 0 takes any free port.
        host: Host name or address to listen on.

    Raises:
        UserError: If no port can be opened.
    """
    listening = open_socket(host, port, send_timeout=SEND_TIMEOUT, ports_tried=PORTS_TRIED + 1)
    url_host = f"[{host}]" if ":" in host else host
    return listening, f"http://{url_host}:{listening.getsockname()[1]}/"


def serve_page(app: Starlette, listening: Any, address: str, *, browse: bool = False) -> None:
    """Serve a page until a signal arrives.

    Args:
        app: Application of the page; see `page_application`.
        listening: Socket to listen on; see `open_page`.
        address: Address of the page.
        browse: If True, open the page in the browser.
    """
    if browse:
        webbrowser.open(address)

    def note(message: str) -> None:
        print_note(f"tercet: {message}")

    BoundedServer(app, note=note, grace=2, connections=EXPLORER_CONNECTIONS).run(sockets=[listening])


def page_application(files: Callable[[], Mapping[str, str]], answer: Answer, *, host: str = LOOPBACK) -> Starlette:
    """Return an ASGI application that serves the files of a page and answers its queries.

    Args:
        files: Function that returns the page's files by name, including index.html.
        answer: Function that answers a query, which is sent as `POST api/NAME` with a JSON body. It receives NAME and
            the parsed body. If it raises UserError, the response has the status 400.
        host: Host name or address that the server listens on; requests may use it as their host name.
    """

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        page_texts = files()
        if name not in page_texts:
            return _error_response(404, f"not found: {name!r:.60}")
        headers = {"Content-Security-Policy": policy(page_texts["index.html"])} if name == "index.html" else {}
        return _add_headers(Response(page_texts[name], media_type=type_of(name), headers=headers))

    async def respond(request: Request) -> Response:
        name = request.path_params["name"]
        return await _answer_post(request, lambda body: answer(name, body))

    return Starlette(
        routes=[
            Route("/", page, methods=["GET"]),
            Route("/api/{name}", respond, methods=["POST"]),
            Route("/{name}", page, methods=["GET"]),
        ],
        middleware=[Middleware(_Guard, names=AllowedNames(local=is_loopback(host), hosts=(host.lower(),)))],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_failure},
    )


class _Guard:
    """Middleware that rejects requests with a foreign host name, and requests from pages of other sites."""

    def __init__(self, app: ASGIApp, *, names: AllowedNames) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rejection = self._names.check_headers(Request(scope).headers) if scope["type"] == "http" else None
        if rejection is None:
            await self._app(scope, receive, send)
        else:
            response = _error_response(403, f"{rejection.message}; open the address that was printed")
            await response(scope, receive, send)


async def _answer_post(request: Request, respond: Callable[[Any], Response]) -> Response:
    """Read a query and answer it in a thread, since the computation would block the event loop."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return _error_response(415, "a query must be JSON; send it with the content type application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return _error_response(413, f"the query exceeds {MAX_BODY_BYTES:,} bytes; send a smaller one")
    except TimeoutError:
        return _error_response(408, f"the query was not complete within {BODY_SECONDS:g} seconds; send it again")
    except ClientDisconnect:
        return _error_response(400, "the query was cut off")  # the client is gone
    try:
        data = json.loads(body)
        # Reject half a surrogate pair, which cannot be encoded as UTF-8 in a response.
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return _error_response(400, "the query is not valid JSON")
    try:
        return _add_headers(await run_in_threadpool(respond, data))
    except UserError as error:
        return _error_response(400, " ".join(str(error)[:MAX_ERROR_CHARACTERS].split()))


def _on_http_error(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _error_response(status, "invalid request: queries use POST api/NAME; open the address that was printed")


def _on_failure(_request: Request, _error: Exception) -> Response:
    return _error_response(500, "internal error; see the terminal of the server")


def _error_response(status: int, error: str) -> Response:
    return _add_headers(JSONResponse({"error": error}, status_code=status))


def _add_headers(response: Response) -> Response:
    for name, value in {**SECURITY_HEADERS, "cache-control": "no-store"}.items():
        response.headers.setdefault(name, value)
    return response

"""The page over HTTP, for one's own browser: a few files, and a POST for each query.

It is meant for this machine alone, and holds other pages off: a request must name a host of this machine, which no page
can fake by a name of its own that leads here, and a question must be JSON, which no form of another page can send.
"""

import json
import socket
import sys
import webbrowser
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tercet.config import UserError
from tercet.explorer.answers import Answers
from tercet.explorer.export import export_page
from tercet.explorer.page_files import page_files, policy, type_of
from tercet.explorer.queries import HeadsQuery, parse_query
from tercet.loopback import LOOPBACK, is_loopback, names_loopback

PORT = 8765
PORTS_TRIED = 20  # ports after the one that was asked for
MAX_BODY_BYTES = 1_000_000  # bytes of a question


def serve(answers: Answers, *, host: str = LOOPBACK, port: int = PORT, browse: bool = False) -> None:
    """Answer until a signal ends it; the page's address is the one line on stdout.

    Args:
        host: a name or an address of this machine.
        port: the first one to try; 0 takes any that is free.
        browse: open the page in the browser.

    Raises:
        UserError: where nothing can be opened there.
    """
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    if not is_loopback(host):
        print(
            f"tercet: {host} is more than this machine: whoever reaches it can read the model and its texts",
            file=sys.stderr,
        )
    print(address, flush=True)
    if browse:
        webbrowser.open(address)
    config = uvicorn.Config(
        application(answers, host=host),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listening])


def application(answers: Answers, *, host: str = LOOPBACK) -> Starlette:
    """The server as an ASGI application."""

    async def page(request: Request) -> Response:
        refusal = _refuse_host(request, host)
        name = request.path_params.get("name", "index.html")
        files = page_files()
        if refusal is not None:
            return refusal
        if name not in files:
            return _error_response(404, f"there is no {name!r:.60} here")
        headers = {"Content-Security-Policy": policy(files["index.html"])} if name == "index.html" else {}
        return _with_headers(Response(files[name], media_type=type_of(name), headers=headers))

    async def answer(request: Request) -> Response:
        name = request.path_params["name"]

        def respond(body: Any) -> Response:
            if name == "export":
                return Response(export_page(answers, parse_query(HeadsQuery, body).ask), media_type="text/html")
            return JSONResponse(answers.answer(name, body))

        return await _answer_post(request, host, respond)

    return Starlette(
        routes=[
            Route("/", page, methods=["GET"]),
            Route("/api/{name}", answer, methods=["POST"]),
            Route("/{name}", page, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_failure},
    )


async def _answer_post(request: Request, host: str, respond: Callable[[Any], Response]) -> Response:
    """Read the question, and have it answered beside the loop, for the model takes its time."""
    refusal = _refuse_host(request, host)
    if refusal is not None:
        return refusal
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return _error_response(415, "a question is JSON; send it with the content type application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return _error_response(413, f"a question has at most {MAX_BODY_BYTES:,} bytes")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return _error_response(400, "the question is not valid JSON")
    try:
        return _with_headers(await run_in_threadpool(respond, data))
    except UserError as error:
        return _error_response(400, " ".join(str(error).split()))


def _on_http_error(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _error_response(status, "the page asks here with POST api/NAME; open the address that was printed")


def _on_failure(_request: Request, _error: Exception) -> Response:
    return _error_response(500, "something went wrong; the terminal in which the server runs says what")


def _refuse_host(request: Request, host: str) -> Response | None:
    """Refuse a request under a name that is none of this machine's: a page elsewhere may have made it up."""
    host_header = request.headers.get("host", "")
    if not is_loopback(host) or names_loopback(host_header):
        return None
    return _error_response(403, f"{host_header!r:.80} is not a name of this machine; open the address that was printed")


def _error_response(status: int, error: str) -> Response:
    return _with_headers(JSONResponse({"error": error}, status_code=status))


def _with_headers(response: Response) -> Response:
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def _listen(host: str, port: int) -> socket.socket:
    """A socket at the first free port from `port` on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last = port if port == 0 else min(port + PORTS_TRIED, 65535)
    for candidate in range(port, last + 1):
        listening = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":  # there it would let two programs share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen()
            return listening
        except OSError as error:
            listening.close()
            if isinstance(error, socket.gaierror) or candidate == last:
                raise UserError(
                    f"cannot open {host} at port {port}: {error.strerror or error}; give another --host or --port"
                ) from None
        except OverflowError:
            listening.close()
            raise UserError(f"--port {port} must be 0 to 65535; 0 takes any that is free") from None
    raise UserError(f"--port {port} must be 0 to 65535; 0 takes any that is free")

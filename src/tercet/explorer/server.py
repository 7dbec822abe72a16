"""The explorer's page over HTTP, for local use: `web.page_server` with the model's answers."""

from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response

from tercet.explorer.answers import Answers
from tercet.explorer.export import export_page
from tercet.explorer.page_files import page_files
from tercet.explorer.queries import HeadsQuery, parse_query
from tercet.loopback import LOOPBACK, is_loopback
from tercet.messages import print_note
from tercet.web.page_server import open_page, page_application, serve_page

PORT = 8765


def serve(answers: Answers, *, host: str = LOOPBACK, port: int = PORT, browse: bool = False) -> None:
    """Serve the page until a signal arrives; print its address as the only line on stdout.

    Args:
        answers: Answers about the model.
        host: Host name or address to listen on.
        port: First port to try; 0 takes any free port.
        browse: If True, open the page in the browser.

    Raises:
        UserError: If no port can be opened.
    """
    listening, address = open_page(port, host=host)
    if not is_loopback(host):
        print_note(f"tercet: {host} is reachable from other machines, which can read the model and its texts")
    print(address, flush=True)
    serve_page(application(answers, host=host), listening, address, browse=browse)


def application(answers: Answers, *, host: str = LOOPBACK) -> Starlette:
    """Return an ASGI application that serves the explorer's page and answers its queries.

    Args:
        answers: Answers about the model.
        host: Host name or address that the server listens on.
    """

    def answer(name: str, body: Any) -> Response:
        if name == "export":
            return Response(export_page(answers, parse_query(HeadsQuery, body).ask), media_type="text/html")
        return JSONResponse(answers.answer(name, body))

    return page_application(page_files, answer, host=host)

"""HTTP server of the dashboard, on the loopback interface only; based on `web.page_server`."""

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response

from tercet.dashboard.answers import RunAnswers
from tercet.web.page_files import read_page_files
from tercet.web.page_server import page_application


def application(answers: RunAnswers) -> Starlette:
    """Return an ASGI application that serves the dashboard's page and answers its queries."""

    def answer(name: str, body: Any) -> Response:
        return JSONResponse(answers.answer(name, body))

    return page_application(page_files, answer)


def page_files() -> Mapping[str, str]:
    """Return the text of each file of the page, by name."""
    return read_page_files("tercet.dashboard")

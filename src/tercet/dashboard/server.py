"""The page of runs over HTTP, on this machine's loopback alone: `web.page_server`, with what is read of the folders."""

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response

from tercet.dashboard.answers import RunAnswers
from tercet.web.page_files import read_page_files
from tercet.web.page_server import page_application


def application(answers: RunAnswers) -> Starlette:
    """The server as an ASGI application."""

    def answer(name: str, body: Any) -> Response:
        return JSONResponse(answers.answer(name, body))

    return page_application(page_files, answer)


def page_files() -> Mapping[str, str]:
    """The text of each of the page's files, by its name."""
    return read_page_files("tercet.dashboard")

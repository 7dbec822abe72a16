"""The web pages: a playground at `/`, and the documentation of /openapi.json at `/docs`.

They load no files of other servers.
"""

from collections.abc import Mapping

from starlette.responses import Response

from tercet.serve.http.errors import APIError
from tercet.web.page_files import policy, read_page_files, type_of

DOCUMENTS = {"/": "index.html", "/docs": "docs.html"}  # file of each page


def page_files() -> Mapping[str, str]:
    """Return the text of each file by name."""
    return read_page_files("tercet.serve.http")


def page_paths() -> tuple[str, ...]:
    """Return the paths of all pages and their files, which contain nothing about the models."""
    names = (name for name in page_files() if name not in DOCUMENTS.values())
    return (*DOCUMENTS, *(f"/page/{name}" for name in names))


def page_response(name: str) -> Response:
    """Return a file of a page.

    Raises:
        APIError: If there is no such file.
    """
    if (text := page_files().get(name)) is None:
        raise APIError(404, f"not found: {name[:100]!r}; the playground is at /")
    headers = {"Cache-Control": "no-cache"}
    if name in DOCUMENTS.values():
        headers["Content-Security-Policy"] = policy(text)
    return Response(text, media_type=type_of(name), headers=headers)

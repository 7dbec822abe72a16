"""The pages for people: a playground at `/`, and at `/docs` what /openapi.json says. Their files load nothing else."""

from collections.abc import Mapping

from starlette.responses import Response

from tercet.serve.http.errors import APIError
from tercet.web.page_files import policy, read_page_files, type_of

DOCUMENTS = {"/": "index.html", "/docs": "docs.html"}  # the file behind each address


def page_files() -> Mapping[str, str]:
    """The text of each file, by its name."""
    return read_page_files("tercet.serve.http")


def page_paths() -> tuple[str, ...]:
    """Every address under which there is a page, or a file of one. They say nothing of the models."""
    names = (name for name in page_files() if name not in DOCUMENTS.values())
    return (*DOCUMENTS, *(f"/page/{name}" for name in names))


def page_response(name: str) -> Response:
    """A file of a page.

    Raises:
        APIError: where there is no such file.
    """
    if (text := page_files().get(name)) is None:
        raise APIError(404, f"there is no {name[:100]!r} here; the playground is at /")
    headers = {"Cache-Control": "no-cache"}
    if name in DOCUMENTS.values():
        headers["Content-Security-Policy"] = policy(text)
    return Response(text, media_type=type_of(name), headers=headers)

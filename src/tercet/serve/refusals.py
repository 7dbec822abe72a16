"""What a client is told when it gets no answer: OpenAI's shape of an error, a status that fits, and the remedy.

{"error": {"message": ..., "type": ..., "param": the field at fault or null, "code": a word for programs or null}}
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tercet.config import UserError
from tercet.generation.sampling import DIVERGED
from tercet.serve.limits import Closing, Full

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}
BROKEN = "something went wrong here, not with the request; the server's log says what"


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """What went wrong, and what helps."""

    error: ErrorBody


class Refused(HTTPException):
    """A request that gets an error for an answer.

    Args:
        param: the field of the request that is at fault.
        code: a word that programs can test for.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers=dict(headers or {}))
        self.param, self.code = param, code

    @property
    def body(self) -> dict[str, Any]:
        # Half a surrogate pair may come back in a message, and no UTF-8 can hold it.
        message = " ".join(self.detail.split()).encode("utf-8", "replace").decode()
        kind = TYPES.get(self.status_code, "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.body, status_code=self.status_code, headers=self.headers)


def refusal(error: BaseException) -> Refused | None:
    """How a client is told of `error`; None for a fault of ours."""
    match error:
        case Refused():
            return error
        case Full():
            return Refused(429, str(error), code="queue_full", headers={"Retry-After": str(error.retry_after)})
        case Closing():
            return Refused(503, str(error), code="closing", headers={"Retry-After": "5"})
        case TimeoutError():
            return Refused(504, str(error), code="timeout")
        case UserError() if str(error) == DIVERGED:
            return Refused(500, DIVERGED, code="not_numbers")
        case UserError():
            return Refused(400, str(error))
        case _:
            return None


def register(app: FastAPI, *, paths: Sequence[str]) -> None:
    """Give every error of `app` this shape.

    Args:
        paths: what there is, for who asks for something else.
    """
    told = ", ".join(paths)

    async def refused(_request: Request, error: Exception) -> Response:
        found = refusal(error)
        return found.response() if found is not None else await broken(_request, error)

    async def http(request: Request, error: Exception) -> Response:
        if isinstance(error, Refused):
            return error.response()
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = error.headers if isinstance(error, HTTPException) else None
        messages = {
            404: f"there is no {request.url.path[:100]!r} here; there is {told}",
            405: f"{request.method[:20]} is not for this address; use {(headers or {}).get('Allow', 'another method')}",
        }
        detail = str(getattr(error, "detail", "") or BROKEN)
        return Refused(status, messages.get(status, detail), headers=headers).response()

    async def unfit(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return unfitting(error.errors()).response()

    async def broken(_request: Request, _error: Exception) -> Response:
        return Refused(500, BROKEN).response()

    handlers = {RequestValidationError: unfit, HTTPException: http, Exception: broken}
    for kind in (Full, Closing, UserError, TimeoutError):
        handlers[kind] = refused
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def unfitting(errors: Sequence[Any]) -> Refused:
    """The first thing in a body that is not what it should be, in words."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    match first["type"]:
        case "missing" if not place:
            return Refused(400, "the body is empty; send a JSON object")
        case "missing":
            return Refused(400, f"{'.'.join(place)} is missing; the request needs it", param=place[0])
        case "unknown_field":
            return Refused(400, str(first["msg"]), param=str(first["ctx"]["field"]))
        case _ if not place:
            return Refused(400, "the body is JSON, but no object; send {...} with the fields of the request")
        case _:
            why = re.sub(r"^(Input|List|Dictionary|String) ", "", str(first["msg"]))
            return Refused(400, f"{'.'.join(place)} {why}", param=place[0])

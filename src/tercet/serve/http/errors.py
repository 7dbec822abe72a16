"""What a client gets in place of an answer: OpenAI's shape of an error, a status that fits, and the remedy.

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
from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.limits import MAX_ERROR_CHARACTERS
from tercet.serve.engine import QueueFull, ShuttingDown
from tercet.serve.registry import ModelSelectionError

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}
DESCRIPTIONS = {
    400: "The request is not what it should be; the message says what, and what helps",
    401: "The key is missing or another",
    403: "Asked under a name that is not this machine's",
    404: "There is no such model",
    408: "The request did not come whole in time",
    413: "The request is too large",
    415: "The request is not JSON",
    429: "Too many are waiting; try again after the seconds in Retry-After",
    500: "The model's weights are broken, or the server is",
    503: "The server is closing, or has too much to do; try again after the seconds in Retry-After",
    504: "The answer took too long",
}
EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    "200": {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "With stream: true, server-sent events up to [DONE]",
    }
}
INTERNAL_ERROR = "something went wrong here, not with the request; the server's log says what"


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """What went wrong, and what helps."""

    error: ErrorBody


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route says of its errors in the OpenAPI page; all of them by default."""
    return {
        status: {"model": ErrorResponse, "description": DESCRIPTIONS[status]} for status in statuses or DESCRIPTIONS
    }


class APIError(HTTPException):
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
        message = " ".join(self.detail[:MAX_ERROR_CHARACTERS].split()).encode("utf-8", "replace").decode()
        kind = TYPES.get(self.status_code, "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.body, status_code=self.status_code, headers=self.headers)


def to_api_error(error: BaseException) -> APIError | None:
    """What a client gets for `error`; None for a fault of ours."""
    match error:
        case APIError():
            return error
        case QueueFull():
            return APIError(429, str(error), code="queue_full", headers={"Retry-After": str(error.retry_after)})
        case ShuttingDown():
            return APIError(503, str(error), code="closing", headers={"Retry-After": "5"})
        case TimeoutError():
            return APIError(504, str(error), code="timeout")
        case ModelSelectionError():
            status = 404 if error.code == "model_not_found" else 400
            return APIError(status, str(error), param="model", code=error.code)
        case UserError() if str(error) == DIVERGENCE_MESSAGE:
            return APIError(500, DIVERGENCE_MESSAGE, code="not_numbers")
        case UserError():
            return APIError(400, str(error))
        case _:
            return None


def register_errors(app: FastAPI, *, paths: Sequence[str]) -> None:
    """Give every error of `app` this shape.

    Args:
        paths: what there is, for who asks for something else.
    """

    async def on_known_error(_request: Request, error: Exception) -> Response:
        return (to_api_error(error) or APIError(500, INTERNAL_ERROR)).response()

    async def on_http_exception(request: Request, error: Exception) -> Response:
        if isinstance(error, APIError):
            return error.response()
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = error.headers if isinstance(error, HTTPException) else None
        messages = {
            404: f"there is no {request.url.path[:100]!r} here; there is {', '.join(paths)}",
            405: f"{request.method[:20]} is not for this address; use {(headers or {}).get('Allow', 'another method')}",
        }
        detail = str(getattr(error, "detail", "") or INTERNAL_ERROR)
        return APIError(status, messages.get(status, detail), headers=headers).response()

    async def on_invalid_body(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return validation_error(error.errors()).response()

    app.add_exception_handler(RequestValidationError, on_invalid_body)
    app.add_exception_handler(HTTPException, on_http_exception)
    for kind in (QueueFull, ShuttingDown, UserError, TimeoutError, Exception):
        app.add_exception_handler(kind, on_known_error)


def validation_error(errors: Sequence[Any]) -> APIError:
    """The first thing in a body that is not what it should be, in words."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    match first["type"]:
        case "missing" if not place:
            return APIError(400, "the body is empty; send a JSON object")
        case "missing":
            return APIError(400, f"{'.'.join(place)} is missing; the request needs it", param=place[0])
        case "unknown_field":
            return APIError(400, str(first["msg"]), param=str(first["ctx"]["field"]))
        case _ if not place:
            return APIError(400, "the body is JSON, but no object; send {...} with the fields of the request")
        case _:
            why = re.sub(r"^(Input|List|Dictionary|String) ", "", str(first["msg"]))
            return APIError(400, f"{'.'.join(place)} {why}", param=place[0])

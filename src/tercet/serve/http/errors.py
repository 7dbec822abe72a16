"""Error responses: OpenAI's format, an HTTP status, and a message with a remedy.

{"error": {"message": ..., "type": ..., "param": the invalid field or null, "code": an error code or null}}
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
    400: "Invalid request; the message contains the reason and a remedy",
    401: "Missing or wrong API key",
    403: "The host name or origin is not allowed",
    404: "Model not found",
    408: "The body was not received in time",
    413: "The body is too large",
    415: "The body is not JSON",
    429: "The queue is full; try again after the seconds in Retry-After",
    500: "Internal error, or weights that contain NaN",
    503: "Shutting down or overloaded; try again after the seconds in Retry-After",
    504: "The response took too long",
}
EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    "200": {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "With stream: true, server-sent events that end with [DONE]",
    }
}
INTERNAL_ERROR = "internal server error; see the server's log for details"


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """An error and its remedy."""

    error: ErrorBody


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route for the OpenAPI document.

    Args:
        statuses: HTTP statuses of the route's errors; by default all statuses in DESCRIPTIONS.
    """
    return {
        status: {"model": ErrorResponse, "description": DESCRIPTIONS[status]} for status in statuses or DESCRIPTIONS
    }


class APIError(HTTPException):
    """An error that is sent as the response to a request.

    Args:
        status: HTTP status.
        message: Reason and remedy.
        param: Invalid field of the request.
        code: Machine-readable error code.
        headers: Additional headers.
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
        # A message may quote half a surrogate pair, which cannot be encoded as UTF-8.
        message = " ".join(self.detail[:MAX_ERROR_CHARACTERS].split()).encode("utf-8", "replace").decode()
        kind = TYPES.get(self.status_code, "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.body, status_code=self.status_code, headers=self.headers)


def to_api_error(error: BaseException) -> APIError | None:
    """Return the error response for an exception; None if the exception is an internal error."""
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
    """Make `app` send all its errors in OpenAI's format.

    Args:
        app: The application.
        paths: Registered paths, listed in 404 responses.
    """

    async def on_known_error(_request: Request, error: Exception) -> Response:
        return (to_api_error(error) or APIError(500, INTERNAL_ERROR)).response()

    async def on_http_exception(request: Request, error: Exception) -> Response:
        if isinstance(error, APIError):
            return error.response()
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = error.headers if isinstance(error, HTTPException) else None
        messages = {
            404: f"not found: {request.url.path[:100]!r}; available paths: {', '.join(paths)}",
            405: f"method not allowed: {request.method[:20]}; use {(headers or {}).get('Allow', 'another method')}",
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
    """Return the error response for an invalid body.

    Args:
        errors: Errors of pydantic; only the first one is reported.
    """
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    match first["type"]:
        case "missing" if not place:
            return APIError(400, "the body is empty; send a JSON object")
        case "missing":
            return APIError(400, f"missing field: {'.'.join(place)}; add it to the request", param=place[0])
        case "unknown_field":
            return APIError(400, str(first["msg"]), param=str(first["ctx"]["field"]))
        case _ if not place:
            return APIError(400, "the body must be a JSON object; send {...} with the fields of the request")
        case "model_attributes_type" | "model_type" | "dict_type":
            return APIError(400, f"{'.'.join(place)} must be a JSON object; send {{...}}", param=place[0])
        case _:
            why = re.sub(r"^(Input|List|Dictionary|String) ", "", str(first["msg"]))
            return APIError(400, f"{'.'.join(place)} {why}", param=place[0])

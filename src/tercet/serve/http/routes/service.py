"""The state of the server: web pages, liveness, readiness and metrics."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import service_of
from tercet.serve.http.errors import ErrorResponse, error_responses
from tercet.serve.http.page_files import DOCUMENTS, page_response
from tercet.serve.http.responses import HealthResponse, ReadyResponse

open_router = APIRouter(route_class=Route)
router = APIRouter(route_class=Route)


@open_router.get("/", include_in_schema=False)
@open_router.get("/docs", include_in_schema=False)
@open_router.get("/page/{name}", include_in_schema=False)
async def page(request: Request) -> Response:
    return page_response(DOCUMENTS.get(request.scope["route"].path) or request.path_params["name"])


@open_router.get(
    "/health", response_model=HealthResponse, responses={503: {"model": HealthResponse}, 403: {"model": ErrorResponse}}
)
async def health(request: Request) -> Response:
    """Liveness, also during a shutdown: 200, or 503 if a model does not respond."""
    is_alive = service_of(request).registry.is_alive
    answer = HealthResponse(status="alive" if is_alive else "stalled")
    return JSONResponse(answer.model_dump(), status_code=200 if is_alive else 503)


@open_router.get(
    "/ready", response_model=ReadyResponse, responses={503: {"model": ReadyResponse}, 403: {"model": ErrorResponse}}
)
async def ready(request: Request) -> Response:
    """Readiness for requests: 200, or 503 if the server is shutting down."""
    registry = service_of(request).registry
    answer = ReadyResponse(status="ready" if registry.is_ready else "closing", models=len(registry.models))
    return JSONResponse(answer.model_dump(), status_code=200 if registry.is_ready else 503)


@router.get(
    "/metrics", response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **error_responses(401, 403, 500)},
)  # fmt: skip
async def metrics(request: Request) -> Response:
    """Return Prometheus metrics."""
    return Response(service_of(request).metrics.render(), media_type="text/plain; version=0.0.4")

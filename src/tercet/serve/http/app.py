"""The ASGI application: routes, error handlers and the guard."""

import json
from functools import cache
from typing import get_args

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from tercet.serve.http.context import Service
from tercet.serve.http.errors import register_errors
from tercet.serve.http.guard import AccessRules, Guard
from tercet.serve.http.log import ServerLog
from tercet.serve.http.metrics import ServerMetrics
from tercet.serve.http.requests import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingsRequest,
    FillRequest,
    RerankRequest,
    SearchRequest,
    TranslateRequest,
)
from tercet.serve.http.routes import ROUTERS, service
from tercet.serve.registry import Endpoint, ModelRegistry
from tercet.version import tercet_version

REQUESTS: dict[Endpoint, type[BaseModel]] = {
    "/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest, "/v1/embeddings": EmbeddingsRequest,
    "/v1/search": SearchRequest, "/translate": TranslateRequest, "/fill-mask": FillRequest,
    "/classify": ClassifyRequest, "/v1/rerank": RerankRequest,
}  # fmt: skip


def application(registry: ModelRegistry, rules: AccessRules | None = None, *, log: ServerLog | None = None) -> FastAPI:
    """Return an application that serves the models of `registry` over HTTP.

    Args:
        registry: Models to serve. The caller must close it (`registry.close`) after the last request.
        rules: Access rules; None for the defaults of `AccessRules`.
        log: Log of requests; None for no log.
    """
    rules = AccessRules() if rules is None else rules
    metrics = ServerMetrics(registry)
    app = FastAPI(
        title="Tercet", version=tercet_version(), openapi_url=None, redirect_slashes=False,
        description="Models that were trained with Tercet or imported into it. "
        "Routes under /v1 are compatible with OpenAI's API.",
    )  # fmt: skip
    app.state.service = Service(registry, metrics, rules)
    app.include_router(service.open_router)
    key = (
        [] if rules.key is None else [Depends(HTTPBearer(auto_error=False))]
    )  # for the schema; the guard checks the key
    for router in ROUTERS:
        app.include_router(router, dependencies=key)
    paths = ["/", "/docs", "/health", "/ready", "/metrics", "/openapi.json", "/v1/models", *get_args(Endpoint)]
    register_errors(app, paths=paths)
    app.add_middleware(Guard, rules=rules, metrics=metrics, log=log or ServerLog(quiet=True), paths=paths)
    if rules.names.origins:  # outside the guard: preflight requests of browsers have no key
        # Any header, since clients send their own: OpenAI's sends x-stainless-os and nine more.
        app.add_middleware(
            CORSMiddleware, allow_origins=list(rules.names.origins), allow_methods=["GET", "POST"],
            allow_headers=["*"], expose_headers=["Retry-After"],
        )  # fmt: skip
    document = cache(lambda: _openapi_document(app, registry))  # cached: building it blocks all clients for 3 ms

    async def openapi(_request: Request) -> Response:
        return Response(document(), media_type="application/json")

    app.add_route("/openapi.json", openapi, include_in_schema=False)
    return app


def _openapi_document(app: FastAPI, registry: ModelRegistry) -> bytes:
    """Return the OpenAPI document with the names of the models and their limits."""
    document = app.openapi()
    schemas = document["components"]["schemas"]
    models = registry.models.values()
    limit = max(model.limits.max_new_tokens for model in models)
    for endpoint, schema in REQUESTS.items():
        fields = schemas[schema.__name__]["properties"]
        fields["model"]["anyOf"][0]["enum"] = [model.name for model in models if endpoint in model.endpoints]
        for name in ("max_tokens", "max_completion_tokens"):
            if name in fields:
                fields[name]["anyOf"][0]["maximum"] = limit
    for path in document["paths"].values():  # FastAPI's default for invalid requests, which have status 400 here
        for operation in path.values():
            operation["responses"].pop("422", None)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

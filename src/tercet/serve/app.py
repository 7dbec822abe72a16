"""The service as an ASGI application: each route hands its question to the room that answers it."""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.security import HTTPBearer
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response

from tercet.serve import completing, reading
from tercet.serve.answered import (
    Chat,
    Completion,
    Embeddings,
    Fills,
    Health,
    Labels,
    Model,
    Models,
    Translations,
)
from tercet.serve.asked import ChatAsked, ClassifyAsked, CompletionAsked, EmbeddingsAsked, FillAsked, TranslateAsked
from tercet.serve.guard import Guard, Rules, route_class
from tercet.serve.log import Log
from tercet.serve.metrics import Metrics
from tercet.serve.page import PAGE, POLICY
from tercet.serve.refusals import ErrorAnswer, register
from tercet.serve.served import Route, Served, Shelf

ERRORS: dict[int, str] = {
    400: "The request is not what it should be; the message says what, and what helps",
    401: "The key is missing or another",
    403: "Asked under a name that is not this machine's",
    404: "There is no such model",
    408: "The request did not come whole in time",
    413: "The request is too large",
    415: "The request is not JSON",
    429: "Too many are waiting; try again after the seconds in Retry-After",
    500: "The model's weights are broken, or the server is",
    503: "The server is closing",
    504: "The answer took too long",
}
STREAM = {"text/event-stream": {"schema": {"type": "string"}}}


def application(shelf: Shelf, rules: Rules | None = None, *, log: Log | None = None) -> FastAPI:
    """The models of `shelf` over HTTP.

    Whoever runs it closes the shelf (`shelf.close`) afterwards.
    """
    rules = Rules() if rules is None else rules
    metrics = Metrics(shelf)
    secured = [] if rules.key is None else [Depends(HTTPBearer(auto_error=False))]  # the guard looks at the key
    app = FastAPI(
        title="Tercet", version=version("tercet"), docs_url=None, redoc_url=None, redirect_slashes=False,
        description="Models that were trained with Tercet, or converted to it. "
        "Routes under /v1 have the shapes of OpenAI's.",
    )  # fmt: skip
    app.router.route_class = route_class(rules)

    def answers(*statuses: int, kind: type | None = None, **more: Any) -> dict[str, Any]:
        told: dict[int | str, Any] = {n: {"model": ErrorAnswer, "description": ERRORS[n]} for n in statuses}
        return {"response_model": kind, "responses": {**told, **more}, "dependencies": secured}

    everywhere = (401, 403, 500)
    asking = tuple(ERRORS)

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE, headers={"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"})

    @app.get("/health", response_model=Health, responses={503: {"model": Health}, 403: {"model": ErrorAnswer}})
    async def health() -> Any:
        """Whether questions are taken: 200, or 503 once the server is closing."""
        told = Health(status="closing" if shelf.closing else "ready", models=len(shelf.models))
        return JSONResponse(told.model_dump(), status_code=503 if shelf.closing else 200)

    @app.get("/metrics", response_class=Response, dependencies=secured, responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **{n: {"model": ErrorAnswer, "description": ERRORS[n]} for n in everywhere},
    })  # fmt: skip
    async def measures() -> Response:
        """What the server counts, for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models", **answers(*everywhere, kind=Models))
    async def models() -> Any:
        """The models that are served."""
        return Models(data=[_model(served) for served in shelf.models.values()])

    @app.get("/v1/models/{name}", **answers(*everywhere, 404, kind=Model))
    async def model(name: str) -> Any:
        """One of the models."""
        return _model(shelf.named(name))

    def able(asked: Any, route: Route) -> Served:
        return shelf.able(asked.model, route)

    streamed = {"200": {"content": STREAM, "description": "With stream: true, server-sent events up to [DONE]"}}

    @app.post("/v1/completions", **answers(*asking, kind=Completion, **streamed))
    async def complete(request: Request, asked: CompletionAsked) -> Any:
        """Continue a text, or each of several."""
        return await completing.complete(request, asked, able(asked, "/v1/completions"), metrics)

    @app.post("/v1/chat/completions", **answers(*asking, kind=Chat, **streamed))
    async def chat(request: Request, asked: ChatAsked) -> Any:
        """Answer the last message of a conversation, by a model that has a chat template."""
        return await completing.chat(request, asked, able(asked, "/v1/chat/completions"), metrics)

    @app.post("/v1/embeddings", **answers(*asking, kind=Embeddings))
    async def embeddings(request: Request, asked: EmbeddingsAsked) -> Any:
        """A vector for each text, by an encoder."""
        return await reading.embeddings(request, asked, able(asked, "/v1/embeddings"), metrics)

    @app.post("/translate", **answers(*asking, kind=Translations))
    async def translate(request: Request, asked: TranslateAsked) -> Any:
        """The translations of each text, best first."""
        return await reading.translations(request, asked, able(asked, "/translate"), metrics)

    @app.post("/fill-mask", **answers(*asking, kind=Fills))
    async def fill(request: Request, asked: FillAsked) -> Any:
        """For each mask in a text what may stand there, likeliest first."""
        return await reading.fills(request, asked, able(asked, "/fill-mask"), metrics)

    @app.post("/classify", **answers(*asking, kind=Labels))
    async def classify(request: Request, asked: ClassifyAsked) -> Any:
        """The label of each text, or of each word of it."""
        return await reading.labels(request, asked, able(asked, "/classify"), metrics)

    register(app, paths=["/", "/health", "/metrics", "/openapi.json", "/v1/models", *TASK_PATHS])
    app.add_middleware(Guard, rules=rules, metrics=metrics, log=log or Log(quiet=True))
    if rules.origins:  # around the guard: a browser asks for leave without the key
        app.add_middleware(
            CORSMiddleware, allow_origins=list(rules.origins), allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"], expose_headers=["Retry-After"],
        )  # fmt: skip
    app.openapi = _told_models(app.openapi, shelf)  # type: ignore[method-assign]
    return app


TASK_PATHS: Sequence[Route] = (
    "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/translate", "/fill-mask", "/classify",
)  # fmt: skip


def _model(served: Served) -> Model:
    weights = served.trained.folder / "config.json"
    return Model(
        id=served.name, created=int(weights.stat().st_mtime) if weights.is_file() else 0, kind=served.kind,
        context=served.max_len, parameters=sum(one.numel() for one in served.trained.model.parameters()),
        routes=list(served.routes),
    )  # fmt: skip


def _told_models(openapi: Callable[[], dict[str, Any]], shelf: Shelf) -> Callable[[], dict[str, Any]]:
    """The OpenAPI page with the names of the models, and the most that may be asked of them."""

    def page() -> dict[str, Any]:
        told = openapi()
        schemas = told["components"]["schemas"]
        for path, kind in zip(TASK_PATHS, ASKED, strict=True):
            fields = schemas[kind.__name__]["properties"]
            able = [name for name, served in shelf.models.items() if path in served.routes]
            fields["model"]["anyOf"][0]["enum"] = able
            for name in ("max_tokens", "max_completion_tokens"):
                if name in fields:
                    most = max(served.limits.max_new_tokens for served in shelf.models.values())
                    fields[name]["anyOf"][0]["maximum"] = most
        for path in told["paths"].values():  # FastAPI's own words for what is a 400 here
            for operation in path.values():
                operation["responses"].pop("422", None)
        return told

    return page


ASKED = (CompletionAsked, ChatAsked, EmbeddingsAsked, TranslateAsked, FillAsked, ClassifyAsked)

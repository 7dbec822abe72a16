"""One module per route, and one for the state of the server."""

from fastapi import APIRouter

from tercet.serve.http.routes import (
    chat,
    classify,
    completions,
    embeddings,
    fill_mask,
    models,
    rerank,
    search,
    service,
    translate,
)

ROUTERS: tuple[APIRouter, ...] = (
    service.router, models.router, completions.router, chat.router, embeddings.router, search.router,
    translate.router, fill_mask.router, classify.router, rerank.router,
)  # fmt: skip

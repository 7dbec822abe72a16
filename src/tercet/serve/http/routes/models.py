"""/v1/models: the models of the server."""

from fastapi import APIRouter, Request

from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import Service, service_of
from tercet.serve.http.errors import error_responses
from tercet.serve.http.responses import ModelCard, ModelList
from tercet.serve.registry import LoadedModel

router = APIRouter(route_class=Route)


@router.get("/v1/models", response_model=ModelList, responses=error_responses(401, 403, 500))
async def models(request: Request) -> ModelList:
    """Return the models of the server."""
    service = service_of(request)
    return ModelList(data=[_card(model, service) for model in service.registry.models.values()])


@router.get("/v1/models/{name}", response_model=ModelCard, responses=error_responses(401, 403, 500, 404))
async def model(request: Request, name: str) -> ModelCard:
    """Return one model."""
    service = service_of(request)
    return _card(service.registry.get(name), service)


def _card(model: LoadedModel, service: Service) -> ModelCard:
    names = service.rules.names
    is_private = names.local and not names.hosts  # only reachable from this machine, whose users may see its folders
    config = model.trained_model.folder / "config.json"
    source_language, target_language = model.languages
    return ModelCard(
        id=model.name, created=int(config.stat().st_mtime) if config.is_file() else 0, kind=model.kind,
        context=model.max_len, parameters=sum(weights.numel() for weights in model.trained_model.model.parameters()),
        routes=list(model.endpoints), folder=str(model.trained_model.folder) if is_private else None,
        source_language=source_language, target_language=target_language,
    )  # fmt: skip

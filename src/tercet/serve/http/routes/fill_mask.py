"""/fill-mask: for each mask in a text what may stand there, as of `tercet fill`."""

from fastapi import APIRouter, Request

from tercet.encoding import Filled
from tercet.serve.engine.batch_tasks import FillOptions
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import error_responses
from tercet.serve.http.requests import FillRequest, as_list
from tercet.serve.http.responses import FilledText, FillResponse

router = APIRouter(route_class=Route)


@router.post("/fill-mask", response_model=FillResponse, responses=error_responses())
async def fill(request: Request, body: FillRequest) -> FillResponse:
    """For each mask in a text what may stand there, likeliest first."""
    context = RequestContext(request, body, "/fill-mask")
    texts = as_list(body.text)
    await context.count_text_tokens(texts)
    options = FillOptions(top=body.top, only=None if body.only is None else tuple(body.only))
    filled: list[Filled] = await context.answer_batch("fill", texts, options)
    answers = [FilledText.model_validate(text, from_attributes=True) for text in filled]
    return FillResponse(model=context.model.name, answers=answers)

"""/fill-mask: candidates for each mask of a text, as in `tercet fill`."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from tercet.encoding import MaskPredictions
from tercet.encoding.fill import TOP
from tercet.encoding.masked_text import count_masks
from tercet.limits import MAX_FILLED_CHARACTERS
from tercet.serve.engine.batch_tasks import FillOptions
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import APIError, error_responses
from tercet.serve.http.item_list import item_list_response
from tercet.serve.http.requests import FillRequest, to_list
from tercet.serve.http.responses import FilledText, FillResponse
from tercet.tokens import Tokenizer

# Characters per candidate for its word, ids and probability: more than their length, since they take longer to encode.
FIELD_CHARACTERS = 256

router = APIRouter(route_class=Route)


@router.post("/fill-mask", response_model=FillResponse, responses=error_responses())
async def fill(request: Request, body: FillRequest) -> Response:
    """Return candidates for each mask of a text, likeliest first."""
    context = RequestContext(request, body, "/fill-mask")
    texts = to_list(body.text)
    await context.count_text_tokens(texts)
    characters = _count_characters(context.model.trained_model.tokenizer, texts, body)
    options = FillOptions(top=body.top, only=None if body.only is None else tuple(body.only))
    filled: list[MaskPredictions] = await context.answer_batch("fill", texts, options)
    return await item_list_response(
        FillResponse(model=context.model.name, answers=[]), "answers", filled, _describe, characters=characters
    )


def _describe(filled: MaskPredictions) -> FilledText:
    return FilledText.model_validate(filled, from_attributes=True)


def _count_characters(tokenizer: Tokenizer, texts: Sequence[str], body: FillRequest) -> int:
    """Return the approximate length of the response in characters.

    Raises:
        APIError: If the length exceeds MAX_FILLED_CHARACTERS.
    """
    n_candidates = len(body.only) if body.only is not None else min(body.top or TOP, tokenizer.vocab_size)
    masks = [count_masks(tokenizer, text) for text in texts]
    characters = sum(
        n_candidates * count * (len(text) + FIELD_CHARACTERS) for count, text in zip(masks, texts, strict=True)
    )
    if characters > MAX_FILLED_CHARACTERS:
        raise APIError(
            400,
            f"{n_candidates * sum(masks):,} candidates with their texts are about {characters / 1e6:,.0f} million "
            f"characters, more than the limit of {MAX_FILLED_CHARACTERS / 1e6:.0f} million; request fewer candidates, "
            "or send fewer masks at once",
            param="only" if body.only is not None else "top",
        )
    return characters

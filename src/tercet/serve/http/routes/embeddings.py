"""/v1/embeddings: a vector for each text, from an encoder."""

import base64

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from tercet.encoding.embed import vector_width
from tercet.serve.engine.batch_tasks import PoolingOptions
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import APIError, error_responses
from tercet.serve.http.item_list import item_list_response
from tercet.serve.http.requests import EmbeddingsRequest, to_list
from tercet.serve.http.responses import EmbeddingItem, EmbeddingsResponse, PromptUsage

NUMBER_CHARACTERS = 20  # approximate JSON of a float32

router = APIRouter(route_class=Route)


@router.post("/v1/embeddings", response_model=EmbeddingsResponse, responses=error_responses())
async def embeddings(request: Request, body: EmbeddingsRequest) -> Response:
    """Return a vector for each text, from an encoder."""
    context = RequestContext(request, body, "/v1/embeddings")
    encoder = context.model.trained_model.require("embed")
    width = vector_width(encoder.model, encoder.projection)
    sizes = (*encoder.sentence.sizes, width)
    if body.dimensions not in (None, *sizes):
        available = f"{width} dimensions" if len(sizes) == 1 else f"{', '.join(map(str, sizes))} dimensions"
        message = f"the vectors of {context.model.name} have {available}, not {body.dimensions}"
        raise APIError(400, f"{message}; omit dimensions", param="dimensions")
    width = body.dimensions or width
    rows = await context.tokenize(_encode_texts, context, body)
    pooling = body.pooling or encoder.sentence.pooling
    options = PoolingOptions(pooling=pooling, normalize=body.normalize, size=body.dimensions)
    vectors: list[np.ndarray] = await context.answer_batch("embed", rows, options)
    tokens = sum(map(len, rows))
    context.count_prompt_tokens(tokens)
    is_base64 = body.encoding_format == "base64"

    def describe(item: tuple[int, np.ndarray]) -> EmbeddingItem:
        index, vector = item
        return EmbeddingItem(index=index, embedding=_encode_base64(vector) if is_base64 else vector.tolist())

    usage = PromptUsage(prompt_tokens=tokens, total_tokens=tokens)
    answer = EmbeddingsResponse(data=[], model=context.model.name, usage=usage)
    return await item_list_response(
        answer, "data", list(enumerate(vectors)), describe, characters=len(vectors) * width * NUMBER_CHARACTERS
    )


def _encode_texts(context: RequestContext, body: EmbeddingsRequest) -> list[tuple[int, ...]]:
    """Return the token ids of each text, without bos and eos.

    A text that is too long is rejected, because the response has no field to report a truncation.
    """
    model, texts = context.model, to_list(body.input)
    max_tokens = model.trained_model.require("embed").text_len - 2  # without bos and eos
    if isinstance(texts[0], str):
        rows = [ids.tolist() for ids in model.trained_model.tokenizer.encode_batch(texts)]
    else:
        rows = [context.known_ids(ids, "input") for ids in texts]
    for number, ids in enumerate(rows):
        if len(ids) > max_tokens:
            name = f"text {number + 1}" if len(rows) > 1 else "the text"
            message = f"{name} has {len(ids):,} tokens, more than the maximum of {model.name} ({max_tokens:,})"
            remedy = f"shorten it by {len(ids) - max_tokens:,}"
            raise APIError(400, f"{message}; {remedy}", param="input", code="context_length_exceeded")
    return [tuple(ids) for ids in rows]


def _encode_base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()

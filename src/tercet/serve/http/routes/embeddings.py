"""/v1/embeddings: a vector for each text, from an encoder."""

import base64

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from tercet.encoding.embed import mean_vectors, vector_width
from tercet.serve.engine.batch_tasks import PoolingOptions
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import APIError, error_responses
from tercet.serve.http.item_list import item_list_response
from tercet.serve.http.long_texts import RequestRows, read_ids, read_texts
from tercet.serve.http.requests import EmbeddingsRequest, to_list
from tercet.serve.http.responses import EmbeddingItem, EmbeddingsResponse

NUMBER_CHARACTERS = 20  # approximate JSON of a float32

router = APIRouter(route_class=Route)


@router.post("/v1/embeddings", response_model=EmbeddingsResponse, responses=error_responses())
async def embeddings(request: Request, body: EmbeddingsRequest) -> Response:
    """Return a vector for each text, from an encoder. Long texts are read in overlapping chunks."""
    context = RequestContext(request, body, "/v1/embeddings")
    encoder = context.model.trained_model.require("embed")
    width = vector_width(encoder.model, encoder.projection)
    sizes = (*encoder.sentence.sizes, width)
    if body.dimensions not in (None, *sizes):
        available = f"{width} dimensions" if len(sizes) == 1 else f"{', '.join(map(str, sizes))} dimensions"
        message = f"the vectors of {context.model.name} have {available}, not {body.dimensions}"
        raise APIError(400, f"{message}; omit dimensions", param="dimensions")
    width = body.dimensions or width
    read = await context.compute(_read_input, context, body)
    context.count_prompt_tokens(read.usage.prompt_tokens)
    pooling = body.pooling or encoder.sentence.pooling
    rows: list[np.ndarray] = await context.answer_batch("embed", read.rows, PoolingOptions(pooling, body.dimensions))
    vectors = await context.compute(mean_vectors, rows, read.tokens, read.counts, normalize=body.normalize)
    is_base64 = body.encoding_format == "base64"

    def describe(item: tuple[int, np.ndarray]) -> EmbeddingItem:
        index, vector = item
        return EmbeddingItem(index=index, embedding=_encode_base64(vector) if is_base64 else vector.tolist())

    answer = EmbeddingsResponse(data=[], model=context.model.name, usage=read.usage)
    return await item_list_response(
        answer, "data", list(enumerate(vectors)), describe, characters=len(vectors) * width * NUMBER_CHARACTERS
    )


def _read_input(context: RequestContext, body: EmbeddingsRequest) -> RequestRows:
    encoder, texts = context.model.trained_model.require("embed"), to_list(body.input)
    if isinstance(texts[0], str):
        return read_texts(encoder.tokenizer, texts, body, max_len=encoder.text_len)
    ids = [context.known_ids(ids, "input") for ids in texts]
    return read_ids(encoder.tokenizer, ids, body, max_len=encoder.text_len)


def _encode_base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()

"""/v1/search: the documents of the server that are most similar to a query, as in `tercet embed --query`."""

import numpy as np
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tercet.encoding import SearchIndex
from tercet.encoding.embed import mean_vectors
from tercet.limits import MAX_FOUND_CHARACTERS
from tercet.serve.engine.batch_tasks import PoolingOptions
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import APIError, error_responses
from tercet.serve.http.item_list import item_list_response
from tercet.serve.http.long_texts import read_texts
from tercet.serve.http.requests import SearchRequest, to_list
from tercet.serve.http.responses import SearchedQuery, SearchNeighbor, SearchResponse

RESULT_CHARACTERS = 120  # approximate JSON of a result without its text
Found = list[tuple[int, float]]  # numbers of vectors, and their cosines

router = APIRouter(route_class=Route)


@router.post("/v1/search", response_model=SearchResponse, responses=error_responses())
async def search(request: Request, body: SearchRequest) -> Response:
    """Return the documents of the server, or chunks of them, that are most similar to each query."""
    context = RequestContext(request, body, "/v1/search")
    encoder, index, queries = context.model.trained_model.require("embed"), context.model.index, to_list(body.query)
    assert index is not None, "only a model with documents supports the route"
    read = await context.compute(read_texts, encoder.tokenizer, queries, body, max_len=encoder.text_len)
    context.count_prompt_tokens(read.usage.prompt_tokens)
    rows: list[np.ndarray] = await context.answer_batch("embed", read.rows, PoolingOptions(index.pooling, index.size))
    vectors = await context.compute(mean_vectors, rows, read.tokens, read.counts, normalize=True)
    found: list[Found] = await context.answer_batch("search", vectors, body.top)
    # In a thread, since the texts may be read from a file.
    answers, characters = await run_in_threadpool(_describe, index, queries, found, with_text=body.return_documents)
    answer = SearchResponse(model=context.model.name, usage=read.usage, answers=[])
    return await item_list_response(answer, "answers", answers, lambda answer: answer, characters=characters)


def _describe(
    index: SearchIndex, queries: list[str], found: list[Found], *, with_text: bool
) -> tuple[list[SearchedQuery], int]:
    """Return the results of each query, and the approximate length of their JSON.

    Raises:
        APIError: If the texts of the results exceed MAX_FOUND_CHARACTERS.
    """
    answers, characters = list[SearchedQuery](), sum(map(len, queries))
    for query, results in zip(queries, found, strict=True):
        neighbors = list[SearchNeighbor]()
        for number, score in results:
            one = index.get_text(number)
            text = one.text if with_text else None
            characters += RESULT_CHARACTERS + len(text or "")
            if characters > MAX_FOUND_CHARACTERS:
                raise APIError(
                    400,
                    f"the results exceed {MAX_FOUND_CHARACTERS / 1e6:.0f} million characters; request fewer (top), or "
                    "return_documents: false",
                    param="top",
                )
            neighbors.append(
                SearchNeighbor(index=one.index, id=one.id, start=one.start, end=one.end, score=score, text=text)
            )
        answers.append(SearchedQuery(query=query, neighbors=neighbors))
    return answers, characters

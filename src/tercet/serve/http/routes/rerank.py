"""/v1/rerank: documents in the order of their relevance to a query, by a reranker or by the similarity of vectors.

The fields are those of the rerank routes of Jina, Cohere and vLLM.
"""

from collections.abc import Sequence

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response
from torch import Tensor

from tercet.encoding.embed import mean_vectors
from tercet.encoding.rerank import relevance_scores
from tercet.serve.engine.batch_tasks import PoolingOptions
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import error_responses
from tercet.serve.http.item_list import item_list_response
from tercet.serve.http.long_texts import check_no_lengths, read_pairs, read_texts
from tercet.serve.http.requests import RerankRequest
from tercet.serve.http.responses import PromptUsage, RerankedText, RerankResponse, RerankResult

RESULT_CHARACTERS = 80  # approximate JSON of a result without its document

router = APIRouter(route_class=Route)


@router.post("/v1/rerank", response_model=RerankResponse, responses=error_responses())
async def rerank(request: Request, body: RerankRequest) -> Response:
    """Return the documents with their relevance to the query, the most relevant first."""
    context = RequestContext(request, body, "/v1/rerank")
    score = _score_pairs if context.model.scores_pairs else _compare_vectors
    usage, scores, cut_tokens = await score(context, body)
    ranking = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]

    def describe(index: int) -> RerankResult:
        document = RerankedText(text=body.documents[index]) if body.return_documents else None
        truncated = cut_tokens[index] > 0
        return RerankResult(index=index, relevance_score=scores[index], document=document, truncated=truncated)

    characters = len(ranking) * RESULT_CHARACTERS
    if body.return_documents:
        characters += sum(len(body.documents[index]) for index in ranking)
    answer = RerankResponse(model=context.model.name, usage=usage, results=[])
    return await item_list_response(answer, "results", ranking, describe, characters=characters)


async def _score_pairs(
    context: RequestContext, body: RerankRequest
) -> tuple[PromptUsage, Sequence[float], Sequence[int]]:
    """Return the relevance of each document by a reranker, and the number of tokens that were cut from each pair."""
    check_no_lengths(body, "pairs of a query and a document")
    model = context.model.trained_model.require("classify")
    pairs = [(body.query, document) for document in body.documents]
    read = await context.compute(read_pairs, model.tokenizer, pairs, max_len=context.model.max_len)
    context.count_prompt_tokens(read.usage.prompt_tokens)
    logits: list[Tensor] = await context.answer_batch("classify", read.rows, True)
    return read.usage, relevance_scores(model.label_head, logits), read.cut_tokens


async def _compare_vectors(
    context: RequestContext, body: RerankRequest
) -> tuple[PromptUsage, Sequence[float], Sequence[int]]:
    """Return the cosine of the vectors of the query and each document, and the number of tokens that were cut."""
    encoder, texts = context.model.trained_model.require("embed"), [body.query, *body.documents]
    read = await context.compute(read_texts, encoder.tokenizer, texts, body, max_len=encoder.text_len)
    context.count_prompt_tokens(read.usage.prompt_tokens)
    rows: list[np.ndarray] = await context.answer_batch("embed", read.rows, PoolingOptions(encoder.sentence.pooling))
    query, *documents = await context.compute(mean_vectors, rows, read.tokens, read.counts, normalize=True)
    cut_query, *cut_documents = read.cut_tokens
    return read.usage, (np.stack(documents) @ query).tolist(), [cut_query + cut for cut in cut_documents]

"""/v1/rerank: documents in the order of their relevance to a query, as in `tercet classify --query`.

The fields are those of the rerank routes of Jina, Cohere and vLLM.
"""

from fastapi import APIRouter, Request
from starlette.responses import Response

from tercet.serve.engine.batch_tasks import Relevance
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import error_responses
from tercet.serve.http.item_list import item_list_response
from tercet.serve.http.requests import RerankRequest
from tercet.serve.http.responses import PromptUsage, RerankedText, RerankResponse, RerankResult

RESULT_CHARACTERS = 80  # approximate JSON of a result without its document

router = APIRouter(route_class=Route)


@router.post("/v1/rerank", response_model=RerankResponse, responses=error_responses())
async def rerank(request: Request, body: RerankRequest) -> Response:
    """Return the documents with their relevance to the query, the most relevant first."""
    context = RequestContext(request, body, "/v1/rerank")
    tokens = await context.count_text_tokens([body.query, *body.documents])
    pairs = [(body.query, document) for document in body.documents]
    relevance: list[Relevance] = await context.answer_batch("rerank", pairs, None)
    ranking = sorted(range(len(pairs)), key=lambda index: -relevance[index].score)[: body.top_n]

    def describe(index: int) -> RerankResult:
        document = RerankedText(text=body.documents[index]) if body.return_documents else None
        score, truncated = relevance[index]
        return RerankResult(index=index, relevance_score=score, document=document, truncated=truncated)

    characters = len(ranking) * RESULT_CHARACTERS
    if body.return_documents:
        characters += sum(len(body.documents[index]) for index in ranking)
    answer = RerankResponse(
        model=context.model.name, usage=PromptUsage(prompt_tokens=tokens, total_tokens=tokens), results=[]
    )
    return await item_list_response(answer, "results", ranking, describe, characters=characters)

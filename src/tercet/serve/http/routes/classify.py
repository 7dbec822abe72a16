"""/classify: the label of each text, or of each word of it, as of `tercet classify`."""

from typing import Any

from fastapi import APIRouter, Request

from tercet.encoding import Classified, Tagged
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import error_responses
from tercet.serve.http.requests import ClassifyRequest, as_list
from tercet.serve.http.responses import ClassifiedText, ClassifyResponse, TaggedText, TaggedWord

router = APIRouter(route_class=Route)


@router.post("/classify", response_model=ClassifyResponse, responses=error_responses())
async def classify(request: Request, body: ClassifyRequest) -> ClassifyResponse:
    """The label of each text, or of each word of it."""
    context = RequestContext(request, body, "/classify")
    texts = as_list(body.text)
    await context.count_text_tokens(texts)
    labels: list[Classified | Tagged] = await context.answer_batch("classify", texts, None)
    answers: list[Any] = [
        _classified(text, label) if isinstance(label, Classified) else _tagged(text, label)
        for text, label in zip(texts, labels, strict=True)
    ]
    return ClassifyResponse(model=context.model.name, answers=answers)


def _classified(text: str, label: Classified) -> ClassifiedText:
    return ClassifiedText(
        text=text, label=label.label, probability=label.probability, scores=label.scores, truncated=label.truncated
    )


def _tagged(text: str, tagged: Tagged) -> TaggedText:
    words = [
        TaggedWord(
            word=word, label=tag and tag.label, probability=tag and tag.probability, scores=tag and tag.scores
        )
        for word, tag in zip(tagged.words, tagged.tags, strict=True)
    ]  # fmt: skip
    return TaggedText(text=text, words=words, truncated=tagged.truncated)

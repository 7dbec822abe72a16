"""/classify: the label, labels or number of each text or pair of texts, or the label of each word of a text."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from tercet.checkpoint import Encoder
from tercet.encoding import Classification, MultiLabelClassification, Regression, Tagging
from tercet.objectives import THRESHOLD
from tercet.serve.engine.batch_tasks import ClassifyOptions
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import APIError, error_responses
from tercet.serve.http.item_list import item_list_response
from tercet.serve.http.requests import ClassifyRequest, to_list
from tercet.serve.http.responses import (
    ClassifiedText,
    ClassifyResponse,
    MultiLabeledText,
    RegressedText,
    TaggedText,
    TaggedWord,
)

Answer = Classification | MultiLabelClassification | Regression | Tagging

SCORE_CHARACTERS = 40  # approximate JSON of a label and its probability

router = APIRouter(route_class=Route)


@router.post("/classify", response_model=ClassifyResponse, responses=error_responses())
async def classify(request: Request, body: ClassifyRequest) -> Response:
    """Return the label, labels or number of each text or pair of texts, or the label of each word of a text."""
    context = RequestContext(request, body, "/classify")
    texts = to_list(body.text)
    trained_model = context.model.trained_model
    head = trained_model.label_head if isinstance(trained_model, Encoder) else None
    if body.threshold is not None and (head is None or head.problem_type != "multi_label_classification"):
        raise APIError(400, "threshold requires a model with several labels per text; omit it for this model")
    threshold = THRESHOLD if body.threshold is None else body.threshold
    if body.text_pair is None:
        await context.count_text_tokens(texts)
        answers: list[Answer] = await context.answer_batch("classify", texts, ClassifyOptions(threshold))
    else:
        pairs = _pairs(texts, to_list(body.text_pair))
        if head is not None and head.over == "tokens":
            raise APIError(400, "text_pair requires a model with labels of texts; omit it", param="text_pair")
        await context.count_text_tokens([text for pair in pairs for text in pair])
        answers = await context.answer_batch("classify", pairs, ClassifyOptions(threshold, pairs=True))
    lists = sum(len(answer.words) if isinstance(answer, Tagging) else 1 for answer in answers)  # dicts of scores
    labels = 1 if head is None else len(head.labels)
    return await item_list_response(
        ClassifyResponse(model=context.model.name, answers=[]), "answers", list(zip(texts, answers, strict=True)),
        _describe, characters=sum(map(len, texts)) + lists * labels * SCORE_CHARACTERS,
    )  # fmt: skip


def _pairs(texts: list[str], others: list[str]) -> list[tuple[str, str]]:
    if len(texts) != len(others):
        message = f"text_pair has {len(others):,} texts, but text has {len(texts):,}; send one for each"
        raise APIError(400, message, param="text_pair")
    return list(zip(texts, others, strict=True))


def _describe(item: tuple[str, Answer]) -> ClassifiedText | MultiLabeledText | RegressedText | TaggedText:
    text, answer = item
    match answer:
        case Classification():
            return _describe_label(text, answer)
        case MultiLabelClassification():
            labels = {label: answer.scores[label] for label in answer.labels}
            return MultiLabeledText(text=text, labels=labels, scores=answer.scores, truncated=answer.truncated)
        case Regression():
            return RegressedText(text=text, value=answer.value, truncated=answer.truncated)
        case Tagging():
            return _describe_tags(text, answer)


def _describe_label(text: str, label: Classification) -> ClassifiedText:
    return ClassifiedText(
        text=text, label=label.label, probability=label.probability, scores=label.scores, truncated=label.truncated
    )


def _describe_tags(text: str, tagged: Tagging) -> TaggedText:
    words = [
        TaggedWord(
            word=word, label=tag and tag.label, probability=tag and tag.probability, scores=tag and tag.scores
        )
        for word, tag in zip(tagged.words, tagged.tags, strict=True)
    ]  # fmt: skip
    return TaggedText(text=text, words=words, truncated=tagged.truncated)

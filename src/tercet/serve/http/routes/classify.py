"""/classify: the label, labels or number of each text or pair of texts, or the label of each word of a text."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from torch import Tensor

from tercet.encoding import Classification, MultiLabelClassification, Regression, Tagging
from tercet.encoding.classify import make_prediction, mean_outputs
from tercet.models import Classifier
from tercet.objectives import THRESHOLD
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import APIError, error_responses
from tercet.serve.http.item_list import item_list_response
from tercet.serve.http.long_texts import RequestRows, check_no_lengths, count_words, read_pairs, read_texts
from tercet.serve.http.requests import ClassifyRequest, to_list
from tercet.serve.http.responses import (
    ClassifiedText,
    ClassifyResponse,
    MultiLabeledText,
    PromptUsage,
    RegressedText,
    TaggedText,
    TaggedWord,
)

Prediction = Classification | MultiLabelClassification | Regression
Answer = Prediction | Tagging

SCORE_CHARACTERS = 40  # approximate JSON of a label and its probability
MANY_SCORES = 1000  # probabilities of labels; sorting more of them would delay other clients by a millisecond

router = APIRouter(route_class=Route)


@router.post("/classify", response_model=ClassifyResponse, responses=error_responses())
async def classify(request: Request, body: ClassifyRequest) -> Response:
    """Return the label, labels or number of each text or pair of texts, or the label of each word of a text."""
    context = RequestContext(request, body, "/classify")
    texts, head = to_list(body.text), context.model.trained_model.require("classify").label_head
    if body.threshold is not None and head.problem_type != "multi_label_classification":
        raise APIError(400, "threshold requires a model with several labels per text; omit it for this model")
    if body.text_pair is not None and head.over == "tokens":
        raise APIError(400, "text_pair requires a model with labels of texts; omit it", param="text_pair")
    label = _label_words if head.over == "tokens" else _label_texts
    usage, answers = await label(context, body)
    lists = sum(len(answer.words) if isinstance(answer, Tagging) else 1 for answer in answers)  # dicts of scores
    characters = sum(map(len, texts)) + lists * len(head.labels) * SCORE_CHARACTERS
    return await item_list_response(
        ClassifyResponse(model=context.model.name, usage=usage, answers=[]), "answers",
        list(zip(texts, answers, strict=True)), _describe, characters=characters,
    )  # fmt: skip


async def _label_texts(context: RequestContext, body: ClassifyRequest) -> tuple[PromptUsage, list[Answer]]:
    """Return the labels or numbers of texts or pairs of texts."""
    model, texts = context.model.trained_model.require("classify"), to_list(body.text)
    if body.text_pair is None:
        read = await context.compute(read_texts, model.tokenizer, texts, body, max_len=context.model.max_len)
    else:
        check_no_lengths(body, "pairs of texts")
        pairs = _pairs(texts, to_list(body.text_pair))
        read = await context.compute(read_pairs, model.tokenizer, pairs, max_len=context.model.max_len)
    context.count_prompt_tokens(read.usage.prompt_tokens)
    logits: list[Tensor] = await context.answer_batch("classify", read.rows, body.text_pair is not None)
    threshold = THRESHOLD if body.threshold is None else body.threshold
    if len(logits) * len(model.label_head.labels) <= MANY_SCORES:
        return read.usage, _predict(model.label_head, logits, read, threshold)
    return read.usage, await run_in_threadpool(_predict, model.label_head, logits, read, threshold)


def _predict(head: Classifier, logits: list[Tensor], read: RequestRows, threshold: float) -> list[Answer]:
    outputs = mean_outputs(head, logits, read.tokens, read.counts)
    return [
        make_prediction(head, output, truncated=cut > 0, chunks=count, threshold=threshold)
        for output, cut, count in zip(outputs, read.cut_tokens, read.counts, strict=True)
    ]


async def _label_words(context: RequestContext, body: ClassifyRequest) -> tuple[PromptUsage, list[Answer]]:
    """Return the labels of the words of texts."""
    check_no_lengths(body, "texts whose words are labeled")
    texts, tokenizer = to_list(body.text), context.model.trained_model.tokenizer
    usage = await context.compute(count_words, tokenizer, texts, max_len=context.model.max_len)
    context.count_prompt_tokens(usage.prompt_tokens)
    return usage, await context.answer_batch("classify", texts, None)


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
            return MultiLabeledText(text=text, labels=labels, scores=answer.scores, **_reading(answer))
        case Regression():
            return RegressedText(text=text, value=answer.value, **_reading(answer))
        case Tagging():
            return _describe_tags(text, answer)


def _describe_label(text: str, label: Classification) -> ClassifiedText:
    return ClassifiedText(
        text=text, label=label.label, probability=label.probability, scores=label.scores, **_reading(label)
    )


def _reading(answer: Prediction) -> dict[str, Any]:
    return {"truncated": answer.truncated, "chunks": answer.chunks}


def _describe_tags(text: str, tagged: Tagging) -> TaggedText:
    words = [
        TaggedWord(
            word=word, label=tag and tag.label, probability=tag and tag.probability, scores=tag and tag.scores
        )
        for word, tag in zip(tagged.words, tagged.tags, strict=True)
    ]  # fmt: skip
    return TaggedText(text=text, words=words, truncated=tagged.truncated)

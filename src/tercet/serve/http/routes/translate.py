"""/translate: the translations of each text, best first, as in `tercet translate`."""

from collections.abc import Sequence

from fastapi import APIRouter, Request

from tercet.generation import Beam, Sampling, Translation, source_lines
from tercet.serve.engine.batch_tasks import TranslationItem
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import APIError, error_responses
from tercet.serve.http.requests import MAX_INPUT_TEXTS, TranslateRequest, to_list
from tercet.serve.http.responses import TranslatedText, TranslateResponse, TranslationChoice

BEAM_FIELDS = {"beam": "size", "n_best": "n_best", "length_penalty": "length_penalty", "alpha": "alpha"}
SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "min_p", "seed")

router = APIRouter(route_class=Route)


@router.post("/translate", response_model=TranslateResponse, responses=error_responses())
async def translate(request: Request, body: TranslateRequest) -> TranslateResponse:
    """Return the translations of each text, best first. Lines of a text are translated separately."""
    context = RequestContext(request, body, "/translate")
    search = _search(body)
    texts = list(map(source_lines, to_list(body.text)))
    lines = [line for text in texts for line in text]
    if len(lines) > MAX_INPUT_TEXTS:
        raise APIError(400, f"text has {len(lines):,} lines; send at most {MAX_INPUT_TEXTS:,} at once", param="text")
    await context.count_text_tokens(lines)
    items = [TranslationItem(text=line, prefix=body.prefix) for line in lines]
    answers: list[list[Translation]] = await context.answer_batch("translate", items, search)
    context.count_new_tokens(sum(len(hypothesis.ids) for hypotheses in answers for hypothesis in hypotheses))
    iterator = iter(answers)
    described = [_describe_text([next(iterator) for _ in text]) for text in texts]
    return TranslateResponse(model=context.model.name, answers=described)


def _search(body: TranslateRequest) -> Beam | Sampling:
    """Return the settings of the beam search, or those of sampling if the request asks for it.

    Raises:
        APIError: If fields cannot be combined, or a value is invalid.
    """
    beam = {field: value for field in BEAM_FIELDS if (value := getattr(body, field)) is not None}
    sampling = {field: value for field in SAMPLING_FIELDS if (value := getattr(body, field)) is not None}
    if sampling and not body.sample:
        message = f"{' and '.join(sampling)}: only for sampled translations; add sample: true"
        raise APIError(400, message, param=next(iter(sampling)))
    if beam and body.sample:
        message = f"sample: true cannot be combined with {' and '.join(beam)}; omit one of them"
        raise APIError(400, message, param=next(iter(beam)))
    try:
        if body.sample:
            return Sampling(**sampling, max_new_tokens=1 << 20)
        return Beam(**{BEAM_FIELDS[field]: value for field, value in beam.items()})
    except ValueError as error:
        raise APIError(400, str(error).replace("size=", "beam="), param="beam") from None


def _describe_text(lines: Sequence[Sequence[Translation]]) -> TranslatedText:
    """Return the translations of a text from those of its lines.

    The first one joins the best translation of each line, the second one the second best, and so on. A line with fewer
    translations contributes its last one.
    """
    ranks = max(map(len, lines))  # an empty line has only one
    choices = [[hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses in lines] for rank in range(ranks)]
    best = choices[0]
    return TranslatedText(
        source="\n".join(line.source for line in best), truncated=any(line.truncated for line in best),
        translations=list(map(_join, choices)),
    )  # fmt: skip


def _join(lines: Sequence[Translation]) -> TranslationChoice:
    return TranslationChoice(
        text="\n".join(line.text for line in lines), score=sum(line.score for line in lines),
        logprob=sum(line.logprob for line in lines), tokens=sum(len(line.ids) for line in lines),
        finish="length" if any(line.finish == "length" for line in lines) else "eos",
    )  # fmt: skip

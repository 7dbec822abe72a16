"""/translate: the translations of each text, best first, as of `tercet translate`."""

from collections.abc import Sequence

from fastapi import APIRouter, Request

from tercet.generation import Beam, Sampling, Translation
from tercet.serve.engine.batch_tasks import TranslationItem
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import APIError, error_responses
from tercet.serve.http.requests import TranslateRequest, as_list
from tercet.serve.http.responses import TranslatedText, TranslateResponse, TranslationChoice

BEAM_FIELDS = {"beam": "size", "n_best": "n_best", "length_penalty": "length_penalty", "alpha": "alpha"}
SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "min_p", "seed")

router = APIRouter(route_class=Route)


@router.post("/translate", response_model=TranslateResponse, responses=error_responses())
async def translate(request: Request, body: TranslateRequest) -> TranslateResponse:
    """The translations of each text, best first."""
    context = RequestContext(request, body, "/translate")
    search = _search(body)
    texts = as_list(body.text)
    await context.count_text_tokens(texts)
    items = [TranslationItem(text=text, prefix=body.prefix) for text in texts]
    answers: list[list[Translation]] = await context.answer_batch("translate", items, search)
    context.count_new_tokens(sum(len(hypothesis.ids) for hypotheses in answers for hypothesis in hypotheses))
    return TranslateResponse(model=context.model.name, answers=[_translated(hypotheses) for hypotheses in answers])


def _search(body: TranslateRequest) -> Beam | Sampling:
    """Raises APIError for fields that do not go together."""
    beam = {field: value for field in BEAM_FIELDS if (value := getattr(body, field)) is not None}
    sampling = {field: value for field in SAMPLING_FIELDS if (value := getattr(body, field)) is not None}
    if sampling and not body.sample:
        message = f"{' and '.join(sampling)}: for a translation that is drawn; add sample: true"
        raise APIError(400, message, param=next(iter(sampling)))
    if beam and body.sample:
        message = f"sample draws one translation; leave {' and '.join(beam)} out"
        raise APIError(400, message, param=next(iter(beam)))
    try:
        if body.sample:
            return Sampling(**sampling, max_new_tokens=1 << 20)
        return Beam(**{BEAM_FIELDS[field]: value for field, value in beam.items()})
    except ValueError as error:
        raise APIError(400, str(error).replace("size=", "beam="), param="beam") from None


def _translated(hypotheses: Sequence[Translation]) -> TranslatedText:
    translations = [
        TranslationChoice(
            text=hypothesis.text, score=hypothesis.score, logprob=hypothesis.logprob, tokens=len(hypothesis.ids),
            finish=hypothesis.finish,
        )
        for hypothesis in hypotheses
    ]  # fmt: skip
    best = hypotheses[0]
    return TranslatedText(source=best.source, truncated=best.truncated, translations=translations)

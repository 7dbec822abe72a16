"""Texts that are read: vectors, translations, words for masks, labels. Each answer is that of the verb."""

import base64
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from tercet.encoding import Classified, Filled, Tagged
from tercet.generation import Beam, Sampling, Translation
from tercet.serve.answered import (
    Embeddings,
    FilledText,
    Fills,
    LabelledText,
    LabelledWord,
    LabelledWords,
    Labels,
    OneCandidate,
    OneTranslation,
    ReadUsage,
    Translated,
    Translations,
    Vector,
)
from tercet.serve.asked import ClassifyAsked, EmbeddingsAsked, FillAsked, TranslateAsked
from tercet.serve.completing import known_ids, listed
from tercet.serve.metrics import Metrics
from tercet.serve.parts import parts, unless_gone
from tercet.serve.refusals import Refused
from tercet.serve.served import Served, Task
from tercet.serve.tasks import Pooled, Source, Wanted

BEAM = {"beam": "size", "n_best": "n_best", "length_penalty": "length_penalty", "alpha": "alpha"}
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


async def embeddings(request: Request, asked: EmbeddingsAsked, served: Served, metrics: Metrics) -> Embeddings:
    """Answer /v1/embeddings."""
    width = served.trained.model.embedding.weight.shape[1]
    if asked.dimensions not in (None, width):
        message = f"the vectors of {served.name} have {width} numbers, and cannot be had with {asked.dimensions}"
        raise Refused(400, f"{message}; leave dimensions out", param="dimensions")
    rows = await run_in_threadpool(_rows, served, asked)
    how = Pooled(pooling=asked.pooling, normalise=asked.normalise)
    vectors: list[np.ndarray] = await _asked(request, served, "embed", rows, how)
    tokens = _count(request, served, metrics, sum(map(len, rows)))
    packed = asked.encoding_format == "base64"
    data = [
        Vector(index=index, embedding=_packed(vector) if packed else vector.tolist())
        for index, vector in enumerate(vectors)
    ]
    return Embeddings(data=data, model=served.name, usage=ReadUsage(prompt_tokens=tokens, total_tokens=tokens))


async def translations(request: Request, asked: TranslateAsked, served: Served, metrics: Metrics) -> Translations:
    """Answer /translate."""
    search = _search(asked)
    items = [Source(text=text, prefix=asked.prefix) for text in listed(asked.text)]
    await _count_texts(request, served, metrics, [item.text for item in items])
    found: list[list[Translation]] = await _asked(request, served, "translate", items, search)
    request.state.told.wrote = sum(len(one.ids) for several in found for one in several)
    metrics.wrote(served.name, request.state.told.wrote)
    return Translations(model=served.name, answers=[_translated(several) for several in found])


async def fills(request: Request, asked: FillAsked, served: Served, metrics: Metrics) -> Fills:
    """Answer /fill-mask."""
    texts = listed(asked.text)
    await _count_texts(request, served, metrics, texts)
    wanted = Wanted(top=asked.top, only=None if asked.only is None else tuple(asked.only))
    found: list[Filled] = await _asked(request, served, "fill", texts, wanted)
    return Fills(model=served.name, answers=[_filled(one) for one in found])


async def labels(request: Request, asked: ClassifyAsked, served: Served, metrics: Metrics) -> Labels:
    """Answer /classify."""
    texts = listed(asked.text)
    await _count_texts(request, served, metrics, texts)
    found: list[Classified | Tagged] = await _asked(request, served, "classify", texts, None)
    answers: list[Any] = [
        _labelled(text, one) if isinstance(one, Classified) else _tagged(text, one)
        for text, one in zip(texts, found, strict=True)
    ]
    return Labels(model=served.name, answers=answers)


async def _asked(request: Request, served: Served, task: Task, items: Sequence[Any], key: Any) -> list[Any]:
    """The answer to each item, in their order; given up where the client goes."""

    async def gather() -> list[Any]:
        submits: list[Callable[..., Any]] = [partial(batcher.submit, item, key) for item in items]
        every = parts(submits, at_once=limits.slots, seconds=limits.seconds, last=lambda _: True)
        async with aclosing(every):
            try:
                found = {index: answer async for index, answer in every}
            except ValueError as error:  # what was asked does not fit this model
                raise Refused(400, str(error)) from None
        return [found[index] for index in range(len(items))]

    limits, batcher = served.limits, served.batcher(task)
    return await unless_gone(request, gather())


async def _count_texts(request: Request, served: Served, metrics: Metrics, texts: Sequence[str]) -> None:
    """Count the tokens; a text that cannot be encoded is told here, before a batch has it."""
    encoded = await run_in_threadpool(served.trained.source_tokenizer.encode_batch, texts)
    _count(request, served, metrics, sum(map(len, encoded)))


def _count(request: Request, served: Served, metrics: Metrics, tokens: int) -> int:
    request.state.told.model, request.state.told.read = served.name, tokens
    metrics.read(served.name, tokens)
    return tokens


def _rows(served: Served, asked: EmbeddingsAsked) -> list[tuple[int, ...]]:
    """The ids of each text. What is too long is refused: a vector could not say that it is of a part alone."""
    every = listed(asked.input)
    encode, room = served.trained.tokenizer.encode_batch, served.max_len - 2  # bos and eos stand around a text
    found = (
        [ids.tolist() for ids in encode(every)]
        if isinstance(every[0], str)
        else [known_ids(served, ids, "input") for ids in every]
    )
    for number, ids in enumerate(found):
        if len(ids) > room:
            what = f"text {number + 1}" if len(found) > 1 else "the text"
            message = f"{what} has {len(ids):,} tokens, and {served.name} takes {room:,} between its two own"
            told = f"{message}; shorten it by {len(ids) - room:,}"
            raise Refused(400, told, param="input", code="context_length_exceeded")
    return [tuple(ids) for ids in found]


def _packed(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _search(asked: TranslateAsked) -> Beam | Sampling:
    """Raises Refused for fields that do not go together."""
    beam = {name: getattr(asked, field) for field, name in BEAM.items() if getattr(asked, field) is not None}
    sampling = {field: getattr(asked, field) for field in SAMPLING if getattr(asked, field) is not None}
    if sampling and not asked.sample:
        raise Refused(
            400,
            f"{' and '.join(sampling)}: for a translation that is drawn; add sample: true",
            param=next(iter(sampling)),
        )
    if beam and asked.sample:
        given = [field for field in BEAM if getattr(asked, field) is not None]
        raise Refused(400, f"sample draws one translation; leave {' and '.join(given)} out", param=given[0])
    try:
        return Sampling(**sampling, max_new_tokens=1 << 20) if asked.sample else Beam(**beam)
    except ValueError as error:
        raise Refused(400, str(error).replace("size=", "beam="), param="beam") from None


def _translated(found: Sequence[Translation]) -> Translated:
    return Translated(
        source=found[0].source,
        truncated=found[0].truncated,
        translations=[
            OneTranslation(
                text=one.text, score=one.score, logprob=one.logprob, tokens=len(one.ids), finish=one.finish
            )
            for one in found
        ],
    )  # fmt: skip


def _filled(found: Filled) -> FilledText:
    masks = [
        [OneCandidate(word=one.word, ids=list(one.ids), probability=one.probability, text=one.text) for one in mask]
        for mask in found.masks
    ]
    return FilledText(text=found.text, masks=masks, truncated=found.truncated)


def _labelled(text: str, one: Classified) -> LabelledText:
    return LabelledText(
        text=text, label=one.label, probability=one.probability, scores=one.scores, truncated=one.truncated
    )


def _tagged(text: str, found: Tagged) -> LabelledWords:
    words = [
        LabelledWord(
            word=word, label=one and one.label, probability=one and one.probability, scores=one and one.scores
        )
        for word, one in zip(found.words, found.tags, strict=True)
    ]  # fmt: skip
    return LabelledWords(text=text, words=words, truncated=found.truncated)

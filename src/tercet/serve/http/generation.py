"""Text generation: events of the engine become deltas, which are streamed or joined.

A response contains the same texts as `tercet generate` with the same settings: sample j of a prompt is drawn with
seed + j, and does not depend on other requests.
"""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool

from tercet.config import UserError
from tercet.generation import Sampling
from tercet.generation.grammar import start_grammar
from tercet.serve.engine import TokenEvent
from tercet.serve.http.context import RequestContext
from tercet.serve.http.disconnect import unless_disconnected
from tercet.serve.http.errors import APIError
from tercet.serve.http.formats import Delta, ResponseFormat
from tercet.serve.http.generation_plan import GenerationPlan
from tercet.serve.http.logprobs import CertainTokens
from tercet.serve.http.requests import SamplingRequest
from tercet.serve.http.responses import Usage
from tercet.serve.http.streaming import Event, start_stream
from tercet.serve.http.worker_answers import worker_answers
from tercet.serve.registry import LoadedModel


async def answer(
    context: RequestContext, body: SamplingRequest, plan: GenerationPlan, response_format: ResponseFormat[Delta]
) -> Any:
    """Return the response to a request for text, or a stream of events if `body.stream` is true."""
    await check_structure(body, plan)
    context.count_prompt_tokens(plan.prompt_tokens)
    if body.stream:
        events = _stream(context, plan, response_format, includes_usage=body.includes_usage)
        return await start_stream(context.request, events, patience=plan.model.limits.seconds)
    return await unless_disconnected(context.request, _complete(context, plan, response_format))


async def _complete(context: RequestContext, plan: GenerationPlan, response_format: ResponseFormat[Delta]) -> Any:
    texts: list[list[Delta]] = [[] for _ in plan.requests]
    async with aclosing(_deltas(context, plan, response_format, is_streamed=False)) as arriving:
        async for index, delta in arriving:
            texts[index].append(delta)
    return response_format.response(plan, texts, _usage(context, plan))


async def _stream(
    context: RequestContext, plan: GenerationPlan, response_format: ResponseFormat[Delta], *, includes_usage: bool
) -> AsyncGenerator[Event]:
    head = {"id": plan.id, "object": response_format.object, "created": plan.created, "model": plan.model.name}
    no_usage = {"usage": None} if includes_usage else {}
    async with aclosing(_deltas(context, plan, response_format, is_streamed=True)) as arriving:
        async for _, delta in arriving:
            yield {**head, "choices": [delta.model_dump(exclude_unset=True)], **no_usage}
    if includes_usage:
        yield {**head, "choices": [], "usage": _usage(context, plan).model_dump()}


async def _deltas(
    context: RequestContext, plan: GenerationPlan, response_format: ResponseFormat[Delta], *, is_streamed: bool
) -> AsyncGenerator[tuple[int, Delta]]:
    """Yield the number of a text and its next delta, which is a part of the text in the response's format.

    If `is_streamed` is True, each token is passed on immediately; otherwise several may be passed on together.
    """
    tokenizer = plan.model.trained_model.tokenizer
    certain: dict[int, CertainTokens] = {}
    async with aclosing(_events(context, plan, is_streamed=is_streamed)) as arriving:
        async for index, event in arriving:
            if index not in certain:
                prompt = plan.prompt(index)
                certain[index] = CertainTokens(
                    tokenizer, after=prompt.ids, echo=prompt.echo, sends_end=response_format.sends_end
                )
                if (opening := response_format.opening(plan, index)) is not None:
                    yield index, opening
            tokens = [] if plan.top_logprobs is None else certain[index].push(event)
            if event.text or tokens or event.finish:
                yield index, response_format.delta(plan, index, event, tokens)


async def _events(
    context: RequestContext, plan: GenerationPlan, *, is_streamed: bool
) -> AsyncGenerator[tuple[int, TokenEvent]]:
    """Yield the number of a text and its next event, and record token counts and times in the metrics."""
    limits, name, metrics, requests = plan.model.limits, plan.model.name, context.metrics, plan.requests
    if not plan.sampling.max_new_tokens:  # the response is the echo or empty
        for index in range(len(requests)):
            yield index, TokenEvent(text="", finish="length")
        return
    submits = [partial(plan.model.scheduler.submit, request) for request in requests]
    arrivals = dict[int, float]()  # time of the last token of each text
    arriving = worker_answers(
        submits, max_running=limits.slots, seconds=limits.seconds, is_last=_is_last, is_streamed=is_streamed
    )
    async with aclosing(arriving):
        async for index, event in arriving:
            if event.token is not None:
                if not arrivals:
                    metrics.observe_first_token(name, event.at - context.stats.began)
                if index in arrivals:
                    metrics.observe_next_token(name, event.at - arrivals[index])
                arrivals[index] = event.at
                context.count_new_tokens(1)
            if event.finish == "time":
                raise TimeoutError(
                    f"the text was not finished within {limits.seconds:g} seconds; request fewer tokens, or stream them"
                )
            yield index, event


def _is_last(event: TokenEvent) -> bool:
    return event.finish is not None


def _usage(context: RequestContext, plan: GenerationPlan) -> Usage:
    prompt, new = plan.prompt_tokens, context.stats.new_tokens
    return Usage(prompt_tokens=prompt, completion_tokens=new, total_tokens=prompt + new)


def make_sampling(body: SamplingRequest, max_new_tokens: int) -> Sampling:
    """Return the sampling settings of a request; the seed is random if the request has none."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    settings = {name: value for name in names if (value := getattr(body, name)) is not None}
    # A random seed is below 2^52, so that clients that store numbers as float64 can repeat it exactly.
    seed = secrets.randbelow(1 << 52) if body.seed is None else body.seed
    regex = body.structured_outputs and body.structured_outputs.regex
    if body.response_format is not None and body.structured_outputs is not None:
        raise APIError(400, "structured_outputs and response_format exclude each other", param="structured_outputs")
    return Sampling(
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=body.stops,
        json_schema=body.output_schema,
        regex=regex,
        **settings,
    )


async def check_structure(body: SamplingRequest, plan: GenerationPlan) -> None:
    """Compile the JSON schema or the regex of a request, if there is one, before its texts are submitted.

    Raises:
        APIError: If it is invalid, too large or cannot be satisfied with the vocabulary.
    """
    try:
        for prompt in plan.prompts:
            if (plan.sampling.json_schema, plan.sampling.regex) != (None, None):
                tokenizer = plan.model.trained_model.tokenizer
                await run_in_threadpool(start_grammar, tokenizer, plan.sampling, after=prompt.ids)
    except UserError as error:
        field = "response_format" if body.structured_outputs is None else "structured_outputs"
        raise APIError(400, str(error), param=field) from None


def limit_tokens(model: LoadedModel, requested: int | None, default: int) -> int:
    """Return the maximum number of new tokens per text.

    Args:
        model: Model that generates the texts.
        requested: Number in the request; None if it has none.
        default: Number for a request without one, reduced to the limit of the server if necessary.

    Raises:
        APIError: If `requested` exceeds the limit of the server.
    """
    limit = model.limits.max_new_tokens
    if requested is None:
        return min(default, limit)
    if requested > limit:
        message = f"max_tokens={requested:,} exceeds the limit of this server; request at most {limit:,}"
        raise APIError(400, message, param="max_tokens")
    return requested


def check_length(model: LoadedModel, ids: Sequence[int], param: str, name: str) -> None:
    """Check that a prompt is not longer than the context of the model.

    Args:
        model: Model that generates the text.
        ids: Token ids of the prompt.
        param: Field of the request, for the error.
        name: Description of the prompt, for the error message.

    Raises:
        APIError: If the prompt is longer than the context.
    """
    too_many = len(ids) - model.max_len
    if too_many > 0:
        message = f"{name} has {len(ids):,} tokens, more than the context of {model.name} ({model.max_len:,})"
        raise APIError(400, f"{message}; shorten it by {too_many:,}", param=param, code="context_length_exceeded")

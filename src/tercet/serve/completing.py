"""Texts that go on: prompts become asks, what the engine says to them becomes completions and chat answers.

An answer is what `tercet generate` writes: sample j of a prompt is drawn with seed + j, whoever else is being answered.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tercet.generation import Sampling, encode_prompt
from tercet.serve.answered import Chat, Completion, Usage
from tercet.serve.asked import MOST_ROWS, ChatAsked, CompletionAsked, Drawn
from tercet.serve.engine import Piece
from tercet.serve.events import Event, begun
from tercet.serve.metrics import Metrics
from tercet.serve.parts import parts, unless_gone
from tercet.serve.refusals import Refused
from tercet.serve.served import Served
from tercet.serve.shapes import Chats, Completions, Plan, Prompt, Shape, Text
from tercet.serve.tasks import Scored
from tercet.serve.writing import News, Row, told_prompt

DEFAULT_TOKENS = 200  # of a completion, as of `tercet generate`


async def complete(request: Request, asked: CompletionAsked, served: Served, metrics: Metrics) -> Completion | Response:
    """Answer /v1/completions."""
    prompts = await run_in_threadpool(_prompts, served, asked)
    if len(prompts) * asked.samples > MOST_ROWS:
        told = f"{len(prompts)} prompts, {asked.samples} samples of each: one request may ask for {MOST_ROWS} texts"
        raise Refused(400, f"{told}; send several", param="prompt")
    if asked.echo and asked.logprobs is not None:
        prompts = await unless_gone(request, _with_tokens(served, prompts, asked.logprobs))
    plan = Plan(
        served=served, prompts=prompts, samples=asked.samples, logprobs=asked.logprobs,
        sampling=_sampling(served, asked, _at_most(served, asked.max_tokens, DEFAULT_TOKENS)), id=_id("cmpl"),
    )  # fmt: skip
    return await _answer(request, asked, plan, Completions(), metrics)


async def chat(request: Request, asked: ChatAsked, served: Served, metrics: Metrics) -> Chat | Response:
    """Answer /v1/chat/completions."""
    if asked.top_logprobs is not None and not asked.logprobs:
        raise Refused(400, "top_logprobs is for logprobs: true; add it", param="top_logprobs")
    messages = [{"role": message.role, "content": message.text} for message in asked.messages]
    ids = await run_in_threadpool(served.chat.ids, messages)
    _check_length(served, ids, "messages", "the conversation")
    given = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    plan = Plan(
        served=served, prompts=[Prompt(ids=tuple(ids))], samples=asked.samples,
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        # By default as long as the conversation stays in sight.
        sampling=_sampling(served, asked, _at_most(served, given, max(1, served.max_len - len(ids)))),
        id=_id("chatcmpl"),
    )  # fmt: skip
    return await _answer(request, asked, plan, Chats(), metrics)


async def _answer(request: Request, asked: Drawn, plan: Plan, shape: Shape, metrics: Metrics) -> Any:
    request.state.told.model, request.state.told.read = plan.served.name, plan.prompt_tokens
    metrics.read(plan.served.name, plan.prompt_tokens)
    if asked.stream:
        events = _events(request, asked, plan, shape, metrics)
        return await begun(request, events, patience=plan.served.limits.seconds)
    return await unless_gone(request, _whole(request, plan, shape, metrics))


async def _whole(request: Request, plan: Plan, shape: Shape, metrics: Metrics) -> Any:
    written = [Text() for _ in plan.asks]
    async with aclosing(_news(request, plan, metrics)) as every:
        async for index, news in every:
            one = written[index]
            one.text += news.text
            one.tokens += news.tokens
            one.finish = news.finish or one.finish
    return shape.whole(plan, written, _usage(request, plan))


async def _events(request: Request, asked: Drawn, plan: Plan, shape: Shape, metrics: Metrics) -> AsyncGenerator[Event]:
    head = {"id": plan.id, "object": shape.object, "created": plan.created, "model": plan.served.name}
    no_usage = {"usage": None} if asked.usage_asked else {}

    def event(choice: Event) -> Event:
        return {**head, "choices": [choice], **no_usage}

    begun = set[int]()
    async with aclosing(_news(request, plan, metrics)) as every:
        async for index, news in every:
            if index not in begun:
                begun.add(index)
                if (first := shape.begin(plan, index)) is not None:
                    yield event(first)
            if news.text or news.tokens or news.finish:
                yield event(shape.piece(plan, index, news))
    if asked.usage_asked:
        yield {**head, "choices": [], "usage": _usage(request, plan).model_dump()}


async def _news(request: Request, plan: Plan, metrics: Metrics) -> AsyncGenerator[tuple[int, News]]:
    """What there is to send of each text, as it comes."""
    limits, name, told = plan.served.limits, plan.served.name, request.state.told
    rows = [
        Row(plan.served.trained.tokenizer, tokens=plan.logprobs is not None, echoed=plan.prompt(index).echo)
        for index in range(len(plan.asks))
    ]
    if not plan.sampling.max_new_tokens:  # an echo, or nothing
        for index in range(len(rows)):
            yield index, News(text="", finish="length")
        return
    submits = [partial(plan.served.writer.submit, ask) for ask in plan.asks]
    heard = dict[int, float]()
    pieces = parts(submits, at_once=limits.slots, seconds=limits.seconds, last=_is_last)
    async with aclosing(pieces):
        async for index, piece in pieces:
            now = time.perf_counter()
            if piece.tokens:
                if not heard:
                    metrics.first_token(name, now - told.began)
                if index in heard:
                    metrics.next_tokens(name, [(now - heard[index]) / len(piece.tokens)] * len(piece.tokens))
                heard[index] = now
                told.wrote += len(piece.tokens)
                metrics.wrote(name, len(piece.tokens))
            if piece.finish == "time":
                raise TimeoutError(
                    f"the text was not finished in {limits.seconds:g} seconds; ask for fewer tokens, or stream them"
                )
            yield index, rows[index].read(piece)


def _is_last(piece: Piece) -> bool:
    return piece.finish is not None


def _usage(request: Request, plan: Plan) -> Usage:
    read, wrote = plan.prompt_tokens, request.state.told.wrote
    return Usage(prompt_tokens=read, completion_tokens=wrote, total_tokens=read + wrote)


def _prompts(served: Served, asked: CompletionAsked) -> list[Prompt]:
    tokenizer = served.trained.tokenizer
    found = list[Prompt]()
    for number, one in enumerate(listed(asked.prompt)):
        ids = encode_prompt(tokenizer, one) if isinstance(one, str) else known_ids(served, one, "prompt")
        _check_length(served, ids, "prompt", f"prompt {number + 1}" if number else "the prompt")
        echo = "" if not asked.echo else one if isinstance(one, str) else tokenizer.decode(ids)
        found.append(Prompt(ids=tuple(ids), echo=echo))
    return found


def listed(given: "str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]") -> list[Any]:
    """The texts, or the lists of ids, of which one alone may be given without a list around it."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


def known_ids(served: Served, ids: Sequence[int], param: str) -> list[int]:
    """Raises Refused for ids that the vocabulary does not have."""
    size = served.trained.tokenizer.vocab_size
    if beyond := [token for token in ids if token >= size]:
        raise Refused(400, f"the vocabulary has no id {beyond[0]}; ids are 0 to {size - 1}", param=param)
    return list(ids)


def _check_length(served: Served, ids: Sequence[int], param: str, what: str) -> None:
    too_many = len(ids) - served.max_len
    if too_many > 0:
        message = f"{what} has {len(ids):,} tokens, and {served.name} sees {served.max_len:,} at once"
        raise Refused(400, f"{message}; shorten it by {too_many:,}", param=param, code="context_length_exceeded")


def _at_most(served: Served, asked: int | None, usual: int) -> int:
    limit = served.limits.max_new_tokens
    if asked is None:
        return min(usual, limit)
    if asked > limit:
        message = f"max_tokens={asked:,} is more than this server writes for a request; ask for at most {limit:,}"
        raise Refused(400, message, param="max_tokens")
    return asked


def _sampling(served: Served, asked: Drawn, max_new_tokens: int) -> Sampling:
    given = {name: getattr(asked, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    settings = {name: value for name, value in given.items() if value is not None}
    # Fresh ones are small enough for programs that keep numbers as float64.
    seed = secrets.randbelow(1 << 52) if asked.seed is None else asked.seed
    return Sampling(max_new_tokens=max_new_tokens, seed=seed, stop=asked.stops, **settings)


async def _with_tokens(served: Served, prompts: Sequence[Prompt], top: int) -> list[Prompt]:
    batcher = served.batcher("score")
    submits = [partial(batcher.submit, prompt.ids, top) for prompt in prompts]
    scored = dict[int, Scored]()
    limits = served.limits
    every = parts(submits, at_once=limits.slots, seconds=limits.seconds, last=lambda _: True)
    async with aclosing(every):
        async for index, one in every:
            scored[index] = one
    tokenizer = served.trained.tokenizer
    return [
        replace(prompt, tokens=tuple(told_prompt(tokenizer, prompt.ids, scored[index])))
        for index, prompt in enumerate(prompts)
    ]


def _id(kind: Literal["cmpl", "chatcmpl"]) -> str:
    return f"{kind}-{secrets.token_hex(12)}"

"""/v1/completions: continue one or several texts."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request

from tercet.generation import encode_prompt
from tercet.serve.engine.batch_tasks import ScoredPrompt
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import EVENT_STREAM, APIError, error_responses
from tercet.serve.http.formats import CompletionFormat
from tercet.serve.http.generation import answer, check_length, limit_tokens, make_sampling
from tercet.serve.http.generation_plan import GenerationPlan, Prompt
from tercet.serve.http.logprobs import prompt_logprobs
from tercet.serve.http.requests import MAX_GENERATED_TEXTS, CompletionRequest, to_list
from tercet.serve.http.responses import CompletionResponse

DEFAULT_TOKENS = 200  # as in `tercet generate`

router = APIRouter(route_class=Route)


@router.post("/v1/completions", response_model=CompletionResponse, responses={**error_responses(), **EVENT_STREAM})
async def complete(request: Request, body: CompletionRequest) -> Any:
    """Continue one or several texts."""
    context = RequestContext(request, body, "/v1/completions")
    prompts = await context.compute(_encode_prompts, context, body)
    if len(prompts) * body.samples > MAX_GENERATED_TEXTS:
        message = f"{len(prompts)} prompts with {body.samples} samples each exceed the limit of {MAX_GENERATED_TEXTS}"
        raise APIError(400, f"{message} texts; send several requests", param="prompt")
    if body.echo and body.logprobs is not None:
        prompts = await _add_logprobs(context, prompts, body.logprobs)
    length = limit_tokens(context.model, body.max_tokens, DEFAULT_TOKENS)
    plan = GenerationPlan(
        model=context.model, prompts=prompts, samples=body.samples, top_logprobs=body.logprobs,
        sampling=make_sampling(body, length), id=f"cmpl-{secrets.token_hex(12)}",
    )  # fmt: skip
    return await answer(context, body, plan, CompletionFormat())


def _encode_prompts(context: RequestContext, body: CompletionRequest) -> list[Prompt]:
    tokenizer = context.model.trained_model.tokenizer
    prompts = list[Prompt]()
    for number, prompt in enumerate(to_list(body.prompt)):
        is_text = isinstance(prompt, str)
        ids = encode_prompt(tokenizer, prompt) if is_text else context.known_ids(prompt, "prompt")
        check_length(context.model, ids, "prompt", f"prompt {number + 1}" if number else "the prompt")
        echo = "" if not body.echo else prompt if is_text else tokenizer.decode(ids)
        prompts.append(Prompt(ids=tuple(ids), echo=echo))
    return prompts


async def _add_logprobs(context: RequestContext, prompts: Sequence[Prompt], top: int) -> list[Prompt]:
    prompt_scores: list[ScoredPrompt] = await context.answer_batch("score", [prompt.ids for prompt in prompts], top)
    tokenizer = context.model.trained_model.tokenizer
    return [
        replace(prompt, logprobs=prompt_logprobs(tokenizer, prompt.ids, scores, top))
        for prompt, scores in zip(prompts, prompt_scores, strict=True)
    ]

"""/v1/chat/completions: answer a conversation with a model that has a chat template."""

import secrets
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from tercet.generation import answer_budget
from tercet.serve.http.bounded_request import Route
from tercet.serve.http.context import RequestContext
from tercet.serve.http.errors import EVENT_STREAM, APIError, error_responses
from tercet.serve.http.formats import ChatFormat
from tercet.serve.http.generation import answer, check_length, limit_tokens, make_sampling
from tercet.serve.http.generation_plan import GenerationPlan, Prompt
from tercet.serve.http.requests import ChatRequest
from tercet.serve.http.responses import ChatResponse

router = APIRouter(route_class=Route)


@router.post("/v1/chat/completions", response_model=ChatResponse, responses={**error_responses(), **EVENT_STREAM})
async def chat(request: Request, body: ChatRequest) -> Any:
    """Answer the last message of a conversation, with a model that has a chat template."""
    context = RequestContext(request, body, "/v1/chat/completions")
    if body.top_logprobs is not None and not body.logprobs:
        raise APIError(400, "top_logprobs requires logprobs: true; add it", param="top_logprobs")
    model = context.model
    messages = [{"role": message.role, "content": message.text} for message in body.messages]
    ids = await run_in_threadpool(model.chat_template.encode, messages)
    check_length(model, ids, "messages", "the conversation")
    requested = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    # By default, the answer may only be so long that the whole conversation stays within the context.
    length = limit_tokens(model, requested, answer_budget(len(ids), model.max_len))
    plan = GenerationPlan(
        model=model, prompts=[Prompt(ids=tuple(ids))], samples=body.samples, sampling=make_sampling(body, length),
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None, id=f"chatcmpl-{secrets.token_hex(12)}",
    )  # fmt: skip
    return await answer(context, body, plan, ChatFormat())

"""Formats of generated text: OpenAI's completions and chat completions.

Each event of the engine becomes a delta, which is the next part of a text. A stream sends the deltas; a response that
is not streamed contains them joined.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from pydantic import BaseModel

from tercet.serve.engine import TokenEvent
from tercet.serve.http.generation_plan import GenerationPlan
from tercet.serve.http.logprobs import OffsetLogprob, completion_logprobs, join_logprobs
from tercet.serve.http.responses import (
    AssistantMessage,
    ChatChoice,
    ChatDelta,
    ChatLogprobs,
    ChatResponse,
    CompletionChoice,
    CompletionDelta,
    CompletionResponse,
    FinishReason,
    MessageDelta,
    Usage,
)

Delta = TypeVar("Delta", bound=BaseModel)


class ResponseFormat(Protocol[Delta]):
    """A response format; `index` is the number of a text in the plan.

    Attributes:
        object: Value of the field `object` in the events of a stream.
        sends_end: If True, the log-probabilities include that of the end token.
    """

    object: str
    sends_end: bool

    def opening(self, plan: GenerationPlan, index: int) -> Delta | None:
        """Return the delta that precedes the first generated token of a text; None if there is none."""
        ...

    def delta(self, plan: GenerationPlan, index: int, event: TokenEvent, certain: Sequence[OffsetLogprob]) -> Delta:
        """Return the delta for an event of a text.

        Args:
            plan: Plan of the request.
            index: Number of the text.
            event: New part of the text.
            certain: Tokens whose text has become certain with this event; see `logprobs.CertainTokens`.
        """
        ...

    def response(self, plan: GenerationPlan, texts: Sequence[Sequence[Delta]], usage: Usage) -> BaseModel:
        """Return the response with the joined deltas of each text."""
        ...


class CompletionFormat:
    """OpenAI's format of completions."""

    object = "text_completion"
    sends_end = True

    def opening(self, plan: GenerationPlan, index: int) -> CompletionDelta | None:
        prompt = plan.prompt(index)
        if not prompt.echo and prompt.logprobs is None:
            return None
        return CompletionDelta(
            index=index, text=prompt.echo, logprobs=prompt.logprobs, finish_reason=None, seed=plan.seed(index)
        )

    def delta(
        self, plan: GenerationPlan, index: int, event: TokenEvent, certain: Sequence[OffsetLogprob]
    ) -> CompletionDelta:
        logprobs = None if plan.top_logprobs is None else completion_logprobs(certain, plan.top_logprobs)
        return CompletionDelta(
            index=index, text=event.text, logprobs=logprobs, finish_reason=_finish_reason(event), seed=plan.seed(index)
        )

    def response(
        self, plan: GenerationPlan, texts: Sequence[Sequence[CompletionDelta]], usage: Usage
    ) -> CompletionResponse:
        choices = [
            CompletionChoice(
                index=index, text="".join(delta.text for delta in deltas), seed=plan.seed(index),
                logprobs=None if plan.top_logprobs is None else join_logprobs(
                    [delta.logprobs for delta in deltas if delta.logprobs]
                ),
                finish_reason=deltas[-1].finish_reason or "length",
            )
            for index, deltas in enumerate(texts)
        ]  # fmt: skip
        return CompletionResponse(id=plan.id, created=plan.created, model=plan.model.name, choices=choices, usage=usage)


class ChatFormat:
    """OpenAI's format of chat completions."""

    object = "chat.completion.chunk"
    sends_end = False

    def opening(self, plan: GenerationPlan, index: int) -> ChatDelta:
        role = MessageDelta(role="assistant", content="")
        return ChatDelta(index=index, delta=role, logprobs=None, finish_reason=None)

    def delta(self, plan: GenerationPlan, index: int, event: TokenEvent, certain: Sequence[OffsetLogprob]) -> ChatDelta:
        return ChatDelta(
            index=index, delta=MessageDelta(content=event.text) if event.text else MessageDelta(),
            logprobs=None if plan.top_logprobs is None else ChatLogprobs(content=[token for _, token in certain]),
            finish_reason=_finish_reason(event), seed=plan.seed(index),
        )  # fmt: skip

    def response(self, plan: GenerationPlan, texts: Sequence[Sequence[ChatDelta]], usage: Usage) -> ChatResponse:
        choices = [
            ChatChoice(
                index=index, message=AssistantMessage(content="".join(delta.delta.content for delta in deltas)),
                logprobs=None if plan.top_logprobs is None else ChatLogprobs(
                    content=[token for delta in deltas if delta.logprobs for token in delta.logprobs.content]
                ),
                finish_reason=deltas[-1].finish_reason or "length", seed=plan.seed(index),
            )
            for index, deltas in enumerate(texts)
        ]  # fmt: skip
        return ChatResponse(id=plan.id, created=plan.created, model=plan.model.name, choices=choices, usage=usage)


def _finish_reason(event: TokenEvent) -> FinishReason | None:
    return None if event.finish is None else "length" if event.finish == "length" else "stop"

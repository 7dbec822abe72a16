"""How a text that goes on looks to a client: OpenAI's completions and chat completions, in pieces or at once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tercet.generation import Sampling
from tercet.serve.answered import (
    Chat,
    ChatChoice,
    ChatLogprobs,
    Choice,
    Completion,
    Logprobs,
    Said,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from tercet.serve.engine import Ask
from tercet.serve.events import Event
from tercet.serve.served import Served
from tercet.serve.writing import News, Reason, Told


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What is gone on from.

    Attributes:
        echo: its text, where that is sent before the answer.
        tokens: its tokens, where those are told as well.
    """

    ids: tuple[int, ...]
    echo: str = ""
    tokens: tuple[Told, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One request: which model writes how many texts after which prompts."""

    served: Served
    prompts: Sequence[Prompt]
    sampling: Sampling
    samples: int
    logprobs: int | None  # so many likeliest beside each token; None tells no tokens
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def asks(self) -> list[Ask]:
        return [
            Ask(
                ids=prompt.ids,
                sampling=replace(self.sampling, seed=self.seed(sample)),
                top_logprobs=min(self.logprobs or 0, self.served.trained.model.vocab_size),
            )
            for prompt in self.prompts
            for sample in range(self.samples)
        ]

    def prompt(self, index: int) -> Prompt:
        return self.prompts[index // self.samples]

    def seed(self, index: int) -> int:
        return self.sampling.seed + index % self.samples

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompts)


class Shape(Protocol):
    """How news look to the client."""

    def begin(self, plan: Plan, index: int) -> Event | None:
        """What is sent of a text before anything is written."""
        ...

    def piece(self, plan: Plan, index: int, news: News) -> Event: ...

    def whole(self, plan: Plan, written: "Sequence[Text]", usage: Usage) -> Any: ...

    object: str


@dataclass
class Text:
    """A text that is being written, as far as it is."""

    text: str = ""
    tokens: list[Told] = field(default_factory=list)
    finish: Reason = "length"


class Completions:
    """OpenAI's completions."""

    object = "text_completion"

    def begin(self, plan: Plan, index: int) -> Event | None:
        prompt = plan.prompt(index)
        return self.piece(plan, index, News(text=prompt.echo, tokens=prompt.tokens)) if prompt.echo else None

    def piece(self, plan: Plan, index: int, news: News) -> Event:
        logprobs = None if plan.logprobs is None else _logprobs(news.tokens, plan.logprobs).model_dump()
        return {
            "index": index, "text": news.text, "logprobs": logprobs, "finish_reason": news.finish,
            "seed": plan.seed(index),
        }  # fmt: skip

    def whole(self, plan: Plan, written: Sequence[Text], usage: Usage) -> Completion:
        choices = list[Choice]()
        for index, one in enumerate(written):
            prompt = plan.prompt(index)
            tokens = [*prompt.tokens, *one.tokens]
            logprobs = None if plan.logprobs is None else _logprobs(tokens, plan.logprobs)
            choices.append(
                Choice(
                    index=index, text=prompt.echo + one.text, logprobs=logprobs, finish_reason=one.finish,
                    seed=plan.seed(index),
                )
            )  # fmt: skip
        return Completion(id=plan.id, created=plan.created, model=plan.served.name, choices=choices, usage=usage)


class Chats:
    """OpenAI's chat completions."""

    object = "chat.completion.chunk"

    def begin(self, plan: Plan, index: int) -> Event:
        return {
            "index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None
        }  # fmt: skip

    def piece(self, plan: Plan, index: int, news: News) -> Event:
        logprobs = None if plan.logprobs is None else _chat_logprobs(news.tokens).model_dump()
        return {
            "index": index, "delta": {"content": news.text} if news.text else {}, "logprobs": logprobs,
            "finish_reason": news.finish, "seed": plan.seed(index),
        }  # fmt: skip

    def whole(self, plan: Plan, written: Sequence[Text], usage: Usage) -> Chat:
        choices = [
            ChatChoice(
                index=index, message=Said(content=one.text), finish_reason=one.finish, seed=plan.seed(index),
                logprobs=None if plan.logprobs is None else _chat_logprobs(one.tokens),
            )
            for index, one in enumerate(written)
        ]  # fmt: skip
        return Chat(id=plan.id, created=plan.created, model=plan.served.name, choices=choices, usage=usage)


def _logprobs(tokens: Sequence[Told], top: int) -> Logprobs:
    return Logprobs(
        tokens=[one.token for one in tokens],
        token_logprobs=[one.logprob for one in tokens],
        top_logprobs=[_by_name(one, top) for one in tokens],
        text_offset=[one.offset for one in tokens],
    )


def _by_name(one: Told, top: int) -> dict[str, float] | None:
    """The likeliest by their text, and the token itself where it is none of them."""
    if one.top is None or one.logprob is None or not top:
        return None
    found = dict[str, float]()
    for name, logprob in (*one.top, (one.token, one.logprob)):  # of two with one text the likelier counts
        found.setdefault(name, logprob)
    return found


def _chat_logprobs(tokens: Sequence[Told]) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            TokenLogprob(
                token=one.token, logprob=one.logprob or 0.0,
                top_logprobs=[TopLogprob(token=name, logprob=logprob) for name, logprob in one.top or ()],
            )
            for one in tokens
        ]
    )  # fmt: skip

"""A conversation that is answered: its template makes ids of it, and the model writes on to the end of its turn.

The whole conversation is read for each answer. Where it no longer fits the context, its oldest turns are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tercet.config import UserError
from tercet.generation.protocol import Decoder
from tercet.generation.specs import Sampling, SamplingOptions
from tercet.generation.stream import Column, stream
from tercet.generation.text import Finish, TextRow, end_ids
from tercet.tokens import Tokenizer
from tercet.tokens.chat_template import ChatTemplate

Message = Mapping[str, str]  # "role" and "content"
ANSWER_FRACTION = 4  # one in so many tokens of the context is left to the answer before turns are left out for it


def answer_budget(n_tokens: int, max_len: int) -> int:
    """How many tokens an answer may have while a conversation of `n_tokens` stays in sight; at least one."""
    return max(1, max_len - n_tokens)


@dataclass(frozen=True)
class ChatPrompt:
    """What is gone on from.

    Args:
        dropped: messages that were left out, the oldest ones.
    """

    ids: tuple[int, ...]
    dropped: int


class ChatAnswer:
    """The text of an answer, piece by piece as it is certain.

    Attributes:
        finish: why it ended, once it has; an answer that nobody heard out has none.
    """

    def __init__(self, columns: Iterator[Column], row: TextRow) -> None:
        self._columns, self._row = columns, row
        self.finish: Finish | None = None

    def __iter__(self) -> Iterator[str]:
        for (token,) in self._columns:
            if token is None:
                break
            if piece := self._row.read(token):
                yield piece
            if self._row.finish == "stop":
                break
        self.finish = self._row.finish

    @property
    def text(self) -> str:
        """As far as it was heard."""
        return "".join(self._row.pieces)

    @property
    def n_tokens(self) -> int:
        """Those drawn, the one that ends the turn included."""
        return len(self._row.tokens)


class ChatModel:
    """A decoder with its tokenizer and the template of its conversations."""

    def __init__(self, model: Decoder[Any], tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._model, self._tokenizer, self._template = model, tokenizer, template

    @property
    def max_len(self) -> int:
        return self._model.max_len

    def fit(self, messages: Sequence[Message], *, max_new_tokens: int | None = None) -> ChatPrompt:
        """The conversation as ids, without its oldest turns where it would leave the answer too little of the context:
        a quarter, or `max_new_tokens` where these are fewer. The system's message and the last one are never left out.

        Raises:
            UserError: where the last message is too long by itself, or the template refuses the messages.
        """
        reserve = max(1, self.max_len // ANSWER_FRACTION)
        room = self.max_len - min(reserve, reserve if max_new_tokens is None else max_new_tokens)
        head = [message for message in messages[:1] if message["role"] == "system"]
        turns = list(messages[len(head) :])
        ids = self._template.encode([*head, *turns])
        while len(ids) > room and (next_turn := _next_turn(turns)):
            turns = turns[next_turn:]
            ids = self._template.encode([*head, *turns])
        if len(ids) > self.max_len:
            raise UserError(
                f"the last message has, with what stands around it, {len(ids):,} tokens, and the model sees "
                f"{self.max_len:,} at once; write a shorter one"
            )
        return ChatPrompt(ids=tuple(ids), dropped=len(messages) - len(head) - len(turns))

    def ask(self, messages: Sequence[Message], options: SamplingOptions) -> tuple[ChatPrompt, ChatAnswer]:
        """What the model is given of the conversation, and what it says next: by default as long as that stays in
        sight.

        Args:
            options: settings of `Sampling`.

        Raises:
            UserError: as `fit`.
            ValueError: where a setting is out of range.
        """
        settings = Sampling(**options)
        prompt = self.fit(messages, max_new_tokens=options.get("max_new_tokens"))
        room = answer_budget(len(prompt.ids), self.max_len)
        sampling = settings if "max_new_tokens" in options else replace(settings, max_new_tokens=room)
        columns = stream(self._model, [prompt.ids], sampling, stop_ids=end_ids(self._tokenizer))
        return prompt, ChatAnswer(columns, TextRow(self._tokenizer, sampling.stop, prompt_ids=prompt.ids))


def _next_turn(messages: Sequence[Message]) -> int:
    """Where the second turn begins, each of which is begun by the user; 0 where there is one alone."""
    return next((n for n, message in enumerate(messages) if n and message["role"] == "user"), 0)

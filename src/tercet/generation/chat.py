"""Chat: a template turns a conversation into ids, and the model generates the next turn.

The whole conversation is prefilled for each answer. If it leaves too little of the context for the answer, its oldest
turns are dropped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tercet.config import UserError
from tercet.generation.grammar import start_grammars
from tercet.generation.protocol import Decoder
from tercet.generation.specs import Sampling, SamplingOptions
from tercet.generation.stream import Column, stream
from tercet.generation.text import Finish, TextRow, end_ids
from tercet.tokens import Tokenizer
from tercet.tokens.chat_template import ChatTemplate

Message = Mapping[str, str]  # "role" and "content"
ANSWER_FRACTION = 4  # a quarter of the context is reserved for the answer


def answer_budget(n_tokens: int, max_len: int) -> int:
    """Return how many tokens an answer can have while all `n_tokens` of the conversation stay visible; at least 1."""
    return max(1, max_len - n_tokens)


@dataclass(frozen=True)
class ChatPrompt:
    """The prompt for a chat answer.

    Attributes:
        ids: Token ids of the conversation, as the chat template formats it.
        dropped: Number of old messages that were dropped to make the conversation fit.
    """

    ids: tuple[int, ...]
    dropped: int


class ChatAnswer:
    """The text of an answer, generated while it is iterated over.

    Attributes:
        finish: Reason why the answer ended ("stop", "eos" or "length"); None until the iteration is complete.
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
        """The text so far."""
        return "".join(self._row.pieces)

    @property
    def n_tokens(self) -> int:
        """Number of sampled tokens, including the one that ends the turn."""
        return len(self._row.tokens)


class ChatModel:
    """A decoder with its tokenizer and its chat template."""

    def __init__(self, model: Decoder[Any], tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._model, self._tokenizer, self._template = model, tokenizer, template

    @property
    def max_len(self) -> int:
        return self._model.max_len

    def fit(self, messages: Sequence[Message], *, max_new_tokens: int | None = None) -> ChatPrompt:
        """Encode a conversation; drop its oldest turns if they leave too little context for the answer.

        A quarter of the context is reserved for the answer, or `max_new_tokens` if that is less. The system message and
        the last turn are never dropped.

        Raises:
            UserError: If the system message and the last turn exceed the context, or the template rejects the messages.
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
                f"the last message, with its markers and the system message if there is one, has {len(ids):,} tokens, "
                f"more than the context ({self.max_len:,}); shorten one of them"
            )
        return ChatPrompt(ids=tuple(ids), dropped=len(messages) - len(head) - len(turns))

    def ask(self, messages: Sequence[Message], options: SamplingOptions) -> tuple[ChatPrompt, ChatAnswer]:
        """Return the encoded conversation and the answer to its last message.

        Args:
            messages: The conversation.
            options: Fields of `Sampling`. Without `max_new_tokens`, the answer ends before any of the conversation
                would be dropped from the context.

        Raises:
            UserError: If the conversation cannot be encoded, as in `fit`, or the JSON schema or regex cannot be used.
            ValueError: If an option is out of range.
        """
        settings = Sampling(**options)
        prompt = self.fit(messages, max_new_tokens=options.get("max_new_tokens"))
        room = answer_budget(len(prompt.ids), self.max_len)
        sampling = settings if "max_new_tokens" in options else replace(settings, max_new_tokens=room)
        grammars = start_grammars(self._tokenizer, sampling, [prompt.ids])
        columns = stream(self._model, [prompt.ids], sampling, stop_ids=end_ids(self._tokenizer), grammars=grammars)
        return prompt, ChatAnswer(columns, TextRow(self._tokenizer, sampling.stop, prompt_ids=prompt.ids))


def _next_turn(messages: Sequence[Message]) -> int:
    """Return the index at which the second turn begins, with a user message; 0 if there is only one turn."""
    return next((n for n, message in enumerate(messages) if n and message["role"] == "user"), 0)

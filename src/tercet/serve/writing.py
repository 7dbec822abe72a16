"""Pieces from the engine as a client gets them: text that is certain, and the tokens that wrote it, with their places.

What is sent piece by piece, joined, is what is sent at once. The tokens of a stop text and of the end are not among
those told, for their text is not; `usage` counts them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tercet.serve.engine import Piece
from tercet.serve.tasks import Scored
from tercet.tokens import Tokenizer

Reason = Literal["stop", "length"]
LOWEST = -1e9  # JSON has no word for what is below


@dataclass(frozen=True, kw_only=True)
class Told:
    """A token: as text, its natural log-probability, the likeliest in its place, and where its text begins."""

    token: str
    logprob: float | None
    top: tuple[tuple[str, float], ...] | None
    offset: int


@dataclass(frozen=True, kw_only=True)
class News:
    """What there is to send: text, the tokens that are certain now, and at the end why it ended."""

    text: str
    tokens: tuple[Told, ...] = ()
    finish: Reason | None = None


class Row:
    """One text on its way.

    Args:
        tokens: whether its tokens are told.
        echoed: the text that is sent before it.
    """

    def __init__(self, tokenizer: Tokenizer, *, tokens: bool, echoed: str = "") -> None:
        self._told = tokens
        self._places = _Places(tokenizer, start=len(echoed))
        self._sent = len(echoed)
        self._held = list[Told]()

    def read(self, piece: Piece) -> News:
        """What the piece brings."""
        for index, token in enumerate(piece.tokens if self._told else ()):
            top = piece.top[index] if index < len(piece.top) else ()
            self._held.append(self._places.told(token.id, token.logprob, top))
        self._sent += len(piece.text)
        return News(text=piece.text, tokens=self._certain(piece.finish), finish=_reason(piece.finish))

    def _certain(self, finish: str | None) -> tuple[Told, ...]:
        if finish == "length":
            n = len(self._held)
        elif finish == "eos":
            n = max(0, len(self._held) - 1)
        else:  # the text up to here is sent, or up to a stop text
            n = sum(one.offset < self._sent for one in self._held)
        certain, self._held = tuple(self._held[:n]), self._held[n:]
        return certain


def told_prompt(tokenizer: Tokenizer, ids: Sequence[int], scored: Scored) -> list[Told]:
    """The tokens of an echoed prompt; nothing stands before the first, so it has no probability."""
    places = _Places(tokenizer, start=0)
    first, rest = places.told(ids[0], None, None), zip(ids[1:], scored.logprobs, scored.top, strict=True)
    return [first, *(places.told(*one) for one in rest)]


class _Places:
    """Where in a text each of its tokens begins."""

    def __init__(self, tokenizer: Tokenizer, *, start: int) -> None:
        self._tokenizer, self._decoder, self._length = tokenizer, tokenizer.stream(), start

    def told(self, token: int, logprob: float | None, top: Sequence[tuple[int, float]] | None) -> Told:
        name = self._tokenizer.tokens([token])[0]
        text = self._decoder.push(token)
        # What comes with it may begin with the rest of a character that was no character.
        before = len(text) - len(name) if text.endswith(name) else 0
        found = Told(
            token=name, logprob=None if logprob is None else max(logprob, LOWEST), offset=self._length + before,
            top=None if top is None else named(self._tokenizer, top),
        )  # fmt: skip
        self._length += len(text)
        return found


def named(tokenizer: Tokenizer, top: Sequence[tuple[int, float]]) -> tuple[tuple[str, float], ...]:
    """Tokens by their text; those that cannot be drawn at all are left out, for JSON has no word for their number."""
    return tuple((tokenizer.tokens([token])[0], logprob) for token, logprob in top if math.isfinite(logprob))


def _reason(finish: str | None) -> Reason | None:
    return None if finish is None else "length" if finish == "length" else "stop"

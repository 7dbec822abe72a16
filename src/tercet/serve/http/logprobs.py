"""From the engine's tokens to log-probabilities as clients get them: each token once its text is certain.

The tokens of a stop text and of the end are not sent, for their text is not; `usage` counts them.
"""

import math
from collections.abc import Sequence

from tercet.serve.engine import TokenEvent
from tercet.serve.engine.batch_tasks import ScoredPrompt
from tercet.serve.engine.sampling import TopTokens
from tercet.serve.http.responses import CompletionLogprobs, TokenLogprob, TopLogprob
from tercet.tokens import Tokenizer

MIN_LOGPROB = -1e9  # JSON has no word for what is below

OffsetLogprob = tuple[int, TokenLogprob]  # where in the whole text the token's text begins, and the token


class TokenTexts:
    """The tokens of one text as text, and where each begins."""

    def __init__(self, tokenizer: Tokenizer, *, start: int = 0, after: Sequence[int] = ()) -> None:
        self._tokenizer, self._length = tokenizer, start
        self._decoder = tokenizer.stream(after=after)

    def push(self, token: int) -> tuple[int, str]:
        """The next token's offset and text."""
        name = self._tokenizer.tokens([token])[0]
        text = self._decoder.push(token)
        # What comes with it may begin with the rest of a character that was no character.
        offset = self._length + (len(text) - len(name) if text.endswith(name) else 0)
        self._length += len(text)
        return offset, name

    def push_logprob(self, token: int, logprob: float, top: TopTokens) -> OffsetLogprob:
        """The same with its log-probability, and the likeliest in its place but those that cannot be sampled at all."""
        offset, name = self.push(token)
        likeliest = [
            TopLogprob(token=self._tokenizer.tokens([token_id])[0], logprob=value, bytes=None)
            for token_id, value in top
            if math.isfinite(value)
        ]
        return offset, TokenLogprob(token=name, logprob=max(logprob, MIN_LOGPROB), bytes=None, top_logprobs=likeliest)


class CertainTokens:
    """The tokens of one text, held back until their text is certain.

    Args:
        after: the ids that it continues.
        echo: the text that is sent before it.
    """

    def __init__(self, tokenizer: Tokenizer, *, after: Sequence[int] = (), echo: str = "") -> None:
        self._texts = TokenTexts(tokenizer, start=len(echo), after=after)
        self._n_sent = len(echo)
        self._pending = list[OffsetLogprob]()

    def push(self, event: TokenEvent) -> list[OffsetLogprob]:
        """The tokens that are certain with this event."""
        if event.token is not None:
            self._pending.append(self._texts.push_logprob(event.token.id, event.token.logprob, event.token.top))
        self._n_sent += len(event.text)
        if event.finish == "length":
            n = len(self._pending)
        elif event.finish == "eos":
            n = max(0, len(self._pending) - 1)
        else:  # the text up to here is sent, or up to a stop text
            n = sum(offset < self._n_sent for offset, _ in self._pending)
        certain, self._pending = self._pending[:n], self._pending[n:]
        return certain


def completion_logprobs(tokens: Sequence[OffsetLogprob], top: int) -> CompletionLogprobs:
    """Args:
    top: how many of the likeliest were asked for; 0 gives none.
    """
    return CompletionLogprobs(
        tokens=[token.token for _, token in tokens],
        token_logprobs=[token.logprob for _, token in tokens],
        top_logprobs=[_logprobs_by_text(token) if top else None for _, token in tokens],
        text_offset=[offset for offset, _ in tokens],
    )


def prompt_logprobs(tokenizer: Tokenizer, ids: Sequence[int], scored: ScoredPrompt, top: int) -> CompletionLogprobs:
    """The tokens of an echoed prompt; nothing stands before the first, so it has no probability."""
    texts = TokenTexts(tokenizer)
    offset, name = texts.push(ids[0])
    rest = [texts.push_logprob(*token) for token in zip(ids[1:], scored.logprobs, scored.top, strict=True)]
    first = CompletionLogprobs(tokens=[name], token_logprobs=[None], top_logprobs=[None], text_offset=[offset])
    return join_logprobs([first, completion_logprobs(rest, top)])


def join_logprobs(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )


def _logprobs_by_text(token: TokenLogprob) -> dict[str, float]:
    """The likeliest by their text, and the token itself where it is none of them."""
    logprobs = dict[str, float]()
    for token_id in (*token.top_logprobs, token):  # of two with one text the likelier counts
        logprobs.setdefault(token_id.token, token_id.logprob)
    return logprobs

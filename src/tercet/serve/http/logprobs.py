"""Log-probabilities of generated tokens for clients: each token is sent when its text is certain.

The text of a token is certain when it can no longer be a part of a stop string or of an incomplete character. The
tokens of a stop string are not sent, because their text is not; `usage` counts them. The end token is sent in the
format of completions, as by vLLM: lm-eval generates one token after the text that it scores, and removes the last
token of the answer.
"""

import math
from collections.abc import Sequence

from tercet.serve.engine import TokenEvent
from tercet.serve.engine.batch_tasks import ScoredPrompt
from tercet.serve.engine.sampling import TopTokens
from tercet.serve.http.responses import CompletionLogprobs, TokenLogprob, TopLogprob
from tercet.tokens import Tokenizer

MIN_LOGPROB = -1e9  # lower bound, since JSON has no infinity

OffsetLogprob = tuple[int, TokenLogprob]  # offset of the token in the text, and the token


class TokenTexts:
    """Texts and offsets of the tokens of one text.

    Args:
        tokenizer: Tokenizer of the model.
        start: Offset of the first token, in characters.
        after: Ids that precede the text.
    """

    def __init__(self, tokenizer: Tokenizer, *, start: int = 0, after: Sequence[int] = ()) -> None:
        self._tokenizer, self._length = tokenizer, start
        self._decoder = tokenizer.stream(after=after)

    def push(self, token: int) -> tuple[int, str]:
        """Return the offset of the next token in characters, and the token's own text."""
        name = self._tokenizer.tokens([token])[0]
        text = self._decoder.push(token)
        # The new text may begin with bytes of earlier tokens that were not a complete character.
        offset = self._length + (len(text) - len(name) if text.endswith(name) else 0)
        self._length += len(text)
        return offset, name

    def push_logprob(self, token: int, logprob: float, top: TopTokens) -> OffsetLogprob:
        """Return the next token with its log-probability and the likeliest tokens of nonzero probability."""
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
        tokenizer: Tokenizer of the model.
        after: Ids that precede the text.
        echo: Text that is sent before the generated text.
        sends_end: If True, the end token is sent too.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, after: Sequence[int] = (), echo: str = "", sends_end: bool = False
    ) -> None:
        self._texts = TokenTexts(tokenizer, start=len(echo), after=after)
        self._n_sent, self._sends_end = len(echo), sends_end
        self._pending = list[OffsetLogprob]()

    def push(self, event: TokenEvent) -> list[OffsetLogprob]:
        """Return the tokens whose text has become certain with this event."""
        if event.token is not None:
            self._pending.append(self._texts.push_logprob(event.token.id, event.token.logprob, event.token.top))
        self._n_sent += len(event.text)
        if event.finish == "length" or (event.finish == "eos" and self._sends_end):
            n = len(self._pending)
        elif event.finish == "eos":
            n = max(0, len(self._pending) - 1)
        else:  # the text is sent up to here, or up to a stop string
            n = sum(offset < self._n_sent for offset, _ in self._pending)
        certain, self._pending = self._pending[:n], self._pending[n:]
        return certain


def completion_logprobs(tokens: Sequence[OffsetLogprob], top: int) -> CompletionLogprobs:
    """Return the tokens in the format of completions, with likeliest tokens unless `top` is 0."""
    return CompletionLogprobs(
        tokens=[token.token for _, token in tokens],
        token_logprobs=[token.logprob for _, token in tokens],
        top_logprobs=[_logprobs_by_text(token) if top else None for _, token in tokens],
        text_offset=[offset for offset, _ in tokens],
    )


def prompt_logprobs(tokenizer: Tokenizer, ids: Sequence[int], scored: ScoredPrompt, top: int) -> CompletionLogprobs:
    """Return the tokens of an echoed prompt with their log-probabilities; that of the first one is None.

    Args:
        tokenizer: Tokenizer of the model.
        ids: Token ids of the prompt, at least one.
        scored: Log-probabilities of the tokens after the first.
        top: Number of likeliest tokens to report; 0 for none.
    """
    texts = TokenTexts(tokenizer)
    offset, name = texts.push(ids[0])
    rest = [texts.push_logprob(*token) for token in zip(ids[1:], scored.logprobs, scored.top, strict=True)]
    first = CompletionLogprobs(tokens=[name], token_logprobs=[None], top_logprobs=[None], text_offset=[offset])
    return join_logprobs([first, completion_logprobs(rest, top)])


def join_logprobs(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Concatenate the lists of several parts of a text, in their order."""
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )


def _logprobs_by_text(token: TokenLogprob) -> dict[str, float]:
    """Return the log-probability of each likeliest token and of the token itself, by text."""
    logprobs = dict[str, float]()
    for token_id in (*token.top_logprobs, token):  # of two with equal texts, the likelier one is used
        logprobs.setdefault(token_id.token, token_id.logprob)
    return logprobs

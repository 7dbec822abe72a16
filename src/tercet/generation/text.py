"""Text in, text out: prompts are encoded, tokens become text as they come, and a stop text ends its row at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tercet.config import UserError
from tercet.generation.protocol import CacheType, Decoder
from tercet.generation.sampling import Sampling
from tercet.generation.stop import StopMatcher
from tercet.generation.stream import Column, Token, stream
from tercet.tokens import Tokenizer

Finish = Literal["stop", "eos", "length"]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a model wrote after a prompt.

    `ids` and `logprobs` are all tokens drawn, those of a stop text and the end-of-text token included; `text` is
    without them. `logprobs` are natural logs of the model's own probabilities, before temperature and filters.
    """

    prompt: str
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    seed: int
    truncated: bool  # the prompt was longer than the context: the model saw its end only


def generate(
    model: Decoder[CacheType], tokenizer: Tokenizer, prompts: Sequence[str], sampling: Sampling, *, samples: int = 1
) -> list[Completion]:
    """Continue each prompt `samples` times, all in one batch: the samples of the first prompt, then of the second, ...

    Sample j of any prompt is drawn with seed `sampling.seed + j`, so a prompt gets among others what it gets alone.

    Raises:
        UserError: for an empty prompt where the tokenizer has no end-of-text token to start from.
    """
    if samples < 1:
        raise ValueError(f"samples={samples} must be 1 or more")
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    number = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(samples)]
    seeds = [sampling.seed + sample for _, sample in number]
    rows = [TextRow(tokenizer, sampling.stop) for _ in number]
    ended: set[int] = set()
    for column in _stream(model, tokenizer, [encoded[prompt] for prompt, _ in number], sampling, seeds, ended):
        for index, token in enumerate(column):
            if token is not None:
                rows[index].read(token)
                if rows[index].finish == "stop":
                    ended.add(index)
    return [
        Completion(
            prompt=prompts[prompt], text="".join(row.pieces), ids=tuple(token.id for token in row.tokens),
            logprobs=tuple(token.logprob for token in row.tokens), finish=row.finish, seed=seed,
            truncated=len(encoded[prompt]) > model.max_len,
        )
        for (prompt, _), seed, row in zip(number, seeds, rows, strict=True)
    ]  # fmt: skip


def stream_text(model: Decoder[CacheType], tokenizer: Tokenizer, prompt: str, sampling: Sampling) -> Iterator[str]:
    """The text of `generate(...)[0]`, piece by piece as it is certain: whole characters, and never part of a stop text.

    Raises:
        UserError: as `generate`.
    """
    columns = _stream(model, tokenizer, [encode_prompt(tokenizer, prompt)], sampling, [sampling.seed], set())
    return _pieces(columns, TextRow(tokenizer, sampling.stop))


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids that a model continues, after those that open a text for it (a Llama's bos).

    An empty prompt with nothing before it is the end of the text before, where a new one starts.

    Raises:
        UserError: for an empty prompt where the tokenizer has no end-of-text token.
    """
    ids = [*tokenizer.opening, *tokenizer.encode(prompt)]
    if ids:
        return ids
    if tokenizer.eos_id is None:
        raise UserError("the prompt is empty and this tokenizer has no end-of-text token; give at least one character")
    return [tokenizer.eos_id]


def end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text when they are drawn."""
    return frozenset[int]() if tokenizer.eos_id is None else frozenset({tokenizer.eos_id})


def _stream(
    model: Decoder[CacheType],
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    seeds: Sequence[int],
    ended: set[int],
) -> Iterator[Column]:
    return stream(model, prompts, sampling, stop_ids=end_ids(tokenizer), seeds=seeds, ended=ended)


def _pieces(columns: Iterator[Column], row: "TextRow") -> Iterator[str]:
    for (token,) in columns:
        if token is not None and (piece := row.read(token)):
            yield piece
        if row.finish == "stop":
            return


class TextRow:
    """One row on its way from tokens to text."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.tokens: list[Token] = []
        self.pieces: list[str] = []
        self.finish: Finish = "length"
        self._decoder = tokenizer.stream()
        self._matcher = StopMatcher(stop)

    def read(self, token: Token) -> str:
        """Take in the next token and return the text that is certain now, perhaps none."""
        self.tokens.append(token)
        piece = "" if token.finish == "eos" else self._matcher.push(self._decoder.push(token.id))
        if token.finish:
            piece += self.flush()
        if self._matcher.found:
            self.finish = "stop"
        elif token.finish:
            self.finish = token.finish
        self.pieces.append(piece)
        return piece

    def flush(self) -> str:
        """The text ends here: what was held back of it."""
        return self._matcher.push(self._decoder.flush()) + self._matcher.flush()

"""Text in, text out: prompts are encoded, tokens become text as they come, and a stop text ends its row at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from tercet.config import UserError
from tercet.generation.prompt import encode_prompt
from tercet.generation.protocol import CacheType, Decoder, SpeculativeDecoder
from tercet.generation.specs import Sampling
from tercet.generation.speculative import Draft, Lookup, Pass, speculate
from tercet.generation.stop_matcher import StopMatcher
from tercet.generation.stream import Token, stream
from tercet.notebook import Summary, continued_text, note
from tercet.tokens import Tokenizer

Finish = Literal["stop", "eos", "length"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Completion(Summary):
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
    passes: int  # of the model that brought tokens of this text: as many as tokens, but for guesses that were right

    def _repr_html_(self) -> str:
        tokens = f"{len(self.ids):,} tokens, ended by {self.finish}, seed {self.seed}"
        cut = ", of the prompt the end alone was read" if self.truncated else ""
        return continued_text(self.prompt, self.text) + note(tokens + cut)


def generate(
    model: Decoder[CacheType],
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    sampling: Sampling,
    *,
    samples: int = 1,
    speculation: Draft | Lookup | None = None,
) -> list[Completion]:
    """Continue each prompt `samples` times, all in one batch: the samples of the first prompt, then of the second, ...

    Sample j of any prompt is drawn with seed `sampling.seed + j`, so a prompt gets among others what it gets alone.

    Args:
        speculation: Source of draft tokens, see `speculative`; requires a `SpeculativeDecoder`.

    Raises:
        UserError: for a prompt with a character that the vocabulary lacks. An empty one is where a text begins.
    """
    if samples < 1:
        raise ValueError(f"samples={samples} must be 1 or more")
    prompt_ids = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    prompt_samples = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(samples)]
    seeds = [sampling.seed + sample for _, sample in prompt_samples]
    rows = [
        TextRow(tokenizer, sampling.stop, prompt_ids=prompt_ids[prompt] if prompts[prompt] else ())
        for prompt, _ in prompt_samples
    ]
    finished_rows: set[int] = set()
    for new_tokens in _passes(
        model,
        tokenizer,
        [prompt_ids[prompt] for prompt, _ in prompt_samples],
        sampling,
        seeds,
        finished_rows,
        speculation,
    ):
        for index, tokens in enumerate(new_tokens):
            rows[index].read_pass(tokens)
            if rows[index].finish == "stop":
                finished_rows.add(index)
    return [
        Completion(
            prompt=prompts[prompt], text="".join(row.pieces), ids=tuple(token.id for token in row.tokens),
            logprobs=tuple(token.logprob for token in row.tokens), finish=row.finish, seed=seed,
            truncated=len(prompt_ids[prompt]) > model.max_len, passes=row.passes,
        )
        for (prompt, _), seed, row in zip(prompt_samples, seeds, rows, strict=True)
    ]  # fmt: skip


def stream_text(
    model: Decoder[CacheType],
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    *,
    speculation: Draft | Lookup | None = None,
) -> Iterator[str]:
    """The text of `generate(...)[0]`, piece by piece as it is certain: whole characters, and never part of a stop text.

    Raises:
        UserError: as `generate`.
    """
    ids = encode_prompt(tokenizer, prompt)
    passes = _passes(model, tokenizer, [ids], sampling, [sampling.seed], set(), speculation)
    return _stream_pieces(passes, TextRow(tokenizer, sampling.stop, prompt_ids=ids if prompt else ()))


def end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text when they are drawn."""
    return frozenset(tokenizer.end_ids)


def make_draft(
    tokenizer: Tokenizer, draft: SpeculativeDecoder[Any], draft_tokenizer: Tokenizer, *, tokens: int = Draft.tokens
) -> Draft:
    """A model that guesses for one with this tokenizer.

    Raises:
        UserError: where the two call a token by different ids.
    """
    if draft_tokenizer.vocab_size != tokenizer.vocab_size:
        raise _tokenizer_error(f"it has {draft_tokenizer.vocab_size} tokens, the model's {tokenizer.vocab_size}")
    for draft_name, name in zip(_token_labels(draft_tokenizer), _token_labels(tokenizer), strict=True):
        if draft_name != name:
            raise _tokenizer_error(f"it has {draft_name} where the model's has {name}")
    return Draft(model=draft, tokens=tokens)


def choose_speculation(
    tokenizer: Tokenizer,
    draft: tuple[SpeculativeDecoder[Any], Tokenizer] | None,
    lookup: bool | int,
    draft_tokens: int | None,
) -> Draft | Lookup | None:
    """Where guesses come from, if anywhere: another model with its tokenizer, or the text so far.

    Args:
        lookup: True, or how many tokens in a row are looked for.
        draft_tokens: guesses at most; by default as many as the kind has.

    Raises:
        ValueError: where both guess, or neither does what `draft_tokens` is for.
        UserError: as `make_draft`.
    """
    if draft is not None and lookup is not False:
        raise ValueError("draft and lookup both guess what comes next; give one of them")
    if draft is None and lookup is False:
        if draft_tokens is None:
            return None
        raise ValueError(f"draft_tokens={draft_tokens} is for a draft or a lookup; give one of them")
    tokens = {} if draft_tokens is None else {"tokens": draft_tokens}
    if draft is not None:
        return make_draft(tokenizer, *draft, **tokens)
    return Lookup(**({} if lookup is True else {"ngram": lookup}), **tokens)


def _tokenizer_error(reason: str) -> UserError:
    return UserError(f"the draft's tokenizer is another one: {reason}; take a draft that was trained with the same")


def _token_labels(tokenizer: Tokenizer) -> list[str]:
    """Each id, and what it stands for."""
    ids = range(tokenizer.vocab_size)
    roles = dict.fromkeys(tokenizer.special_ids, " (special)")
    labels = zip(ids, tokenizer.tokens(ids), strict=True)
    return [f"id {token} = {name!r}{roles.get(token, '')}" for token, name in labels]


def _passes(
    model: Decoder[CacheType],
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    seeds: Sequence[int],
    finished_rows: set[int],
    speculation: Draft | Lookup | None,
) -> Iterator[Pass]:
    ends = end_ids(tokenizer)
    if speculation is None:
        columns = stream(model, prompts, sampling, stop_ids=ends, seeds=seeds, finished_rows=finished_rows)
        return ([[] if token is None else [token] for token in column] for column in columns)
    speculative = cast("SpeculativeDecoder[Any]", model)
    return speculate(
        speculative, prompts, sampling, speculation=speculation, stop_ids=ends, seeds=seeds, finished_rows=finished_rows
    )


def _stream_pieces(passes: Iterator[Pass], row: "TextRow") -> Iterator[str]:
    for (tokens,) in passes:
        if piece := row.read_pass(tokens):
            yield piece
        if row.finish == "stop":
            return


class TextRow:
    """One row on its way from tokens to text, `after` the ids of its prompt."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], *, prompt_ids: Sequence[int] = ()) -> None:
        self.tokens: list[Token] = []
        self.pieces: list[str] = []
        self.finish: Finish = "length"
        self.passes = 0
        self._decoder = tokenizer.stream(after=prompt_ids)
        self._matcher = StopMatcher(stop)

    def read(self, token: Token) -> str:
        """Take in the next token and return the text that is certain now, perhaps none."""
        self.tokens.append(token)
        piece = "" if token.finish == "eos" else self._matcher.push(self._decoder.push(token.id))
        if token.finish:
            piece += self.flush()
        if self._matcher.is_complete:
            self.finish = "stop"
        elif token.finish:
            self.finish = token.finish
        self.pieces.append(piece)
        return piece

    def read_pass(self, tokens: Sequence[Token]) -> str:
        """The same of all tokens that one pass brought, as far as no stop text ends the row."""
        self.passes += bool(tokens)
        piece = ""
        for token in tokens:
            piece += self.read(token)
            if self.finish == "stop":
                break
        return piece

    def flush(self) -> str:
        """The text ends here: what was held back of it."""
        return self._matcher.push(self._decoder.flush()) + self._matcher.flush()

"""Text generation: encode prompts, decode sampled tokens to text, and stop at stop strings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from tercet.config import UserError
from tercet.generation.grammar import GrammarState, start_grammars
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
    """A text that a model generated after a prompt.

    `ids` and `logprobs` contain all sampled tokens, including those of a stop string and the end-of-text token; `text`
    does not contain these. `logprobs` are natural logarithms of the model's probabilities before temperature and
    filters.
    """

    prompt: str
    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    seed: int
    truncated: bool  # the prompt exceeded the context, so the model saw only its end
    passes: int  # forward passes for this text: one per token, fewer if draft tokens were accepted

    def _repr_html_(self) -> str:
        tokens = f"{len(self.ids):,} tokens, ended by {self.finish}, seed {self.seed}"
        cut = ", the beginning of the prompt was cut off" if self.truncated else ""
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
    """Continue each prompt `samples` times, all in one batch.

    The result contains all samples of the first prompt, then those of the second, and so on. Sample j of each prompt
    is drawn with the seed `sampling.seed + j`, so results do not depend on the other prompts of the batch.

    Args:
        model: Language model.
        tokenizer: Its tokenizer.
        prompts: Texts to continue. After an empty prompt, a new text is generated.
        sampling: Sampling settings.
        samples: Number of completions per prompt.
        speculation: Source of draft tokens for speculative decoding; requires a `SpeculativeDecoder`. None decodes one
            token per forward pass.

    Raises:
        ValueError: If `samples` is less than 1.
        UserError: If a prompt contains a character that is not in the vocabulary, the draft model has a vocabulary of
            another size, a model's outputs are NaN, or the JSON schema or regex of `sampling` cannot be used.
    """
    if samples < 1:
        raise ValueError(f"samples={samples} must be 1 or more")
    prompt_ids = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    prompt_samples = [(prompt, sample) for prompt in range(len(prompts)) for sample in range(samples)]
    seeds = [sampling.seed + sample for _, sample in prompt_samples]
    previous_ids = [prompt_ids[prompt] if prompts[prompt] else () for prompt, _ in prompt_samples]
    rows = [TextRow(tokenizer, sampling.stop, prompt_ids=ids) for ids in previous_ids]
    finished_rows: set[int] = set()
    for new_tokens in _passes(
        model,
        tokenizer,
        [prompt_ids[prompt] for prompt, _ in prompt_samples],
        sampling,
        seeds,
        finished_rows,
        speculation,
        start_grammars(tokenizer, sampling, previous_ids),
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
    """Yield the text of `generate(...)[0]` in pieces: whole characters, and never a part of a stop string.

    The arguments and errors are those of `generate`, with a single prompt and sample.
    """
    ids = encode_prompt(tokenizer, prompt)
    previous_ids = ids if prompt else ()
    grammars = start_grammars(tokenizer, sampling, [previous_ids])
    passes = _passes(model, tokenizer, [ids], sampling, [sampling.seed], set(), speculation, grammars)
    return _stream_pieces(passes, TextRow(tokenizer, sampling.stop, prompt_ids=previous_ids))


def end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that end a text when they are sampled."""
    return frozenset(tokenizer.end_ids)


def make_draft(
    tokenizer: Tokenizer, draft: SpeculativeDecoder[Any], draft_tokenizer: Tokenizer, *, tokens: int = Draft.tokens
) -> Draft:
    """Return the settings for a draft model, after checking that it has the model's vocabulary.

    Args:
        tokenizer: Tokenizer of the model.
        draft: Draft model.
        draft_tokenizer: Tokenizer of the draft model.
        tokens: Maximum number of draft tokens per forward pass.

    Raises:
        UserError: If the vocabularies of the two tokenizers differ.
    """
    if draft_tokenizer.vocab_size != tokenizer.vocab_size:
        raise _tokenizer_error(f"{draft_tokenizer.vocab_size} tokens instead of {tokenizer.vocab_size}")
    for draft_name, name in zip(_token_labels(draft_tokenizer), _token_labels(tokenizer), strict=True):
        if draft_name != name:
            raise _tokenizer_error(f"{draft_name} instead of {name}")
    return Draft(model=draft, tokens=tokens)


def choose_speculation(
    tokenizer: Tokenizer,
    draft: tuple[SpeculativeDecoder[Any], Tokenizer] | None,
    lookup: bool | int,
    draft_tokens: int | None,
) -> Draft | Lookup | None:
    """Return the source of draft tokens: a draft model, the text so far, or None.

    Args:
        tokenizer: Tokenizer of the model.
        draft: Draft model and its tokenizer, or None.
        lookup: If True, look draft tokens up in the text so far; an integer does the same with n-grams of this length.
        draft_tokens: Maximum number of draft tokens per forward pass; by default that of `Draft` or `Lookup`.

    Raises:
        ValueError: If both `draft` and `lookup` are set, or `draft_tokens` is set without either.
        UserError: If the tokenizers differ, as in `make_draft`.
    """
    if draft is not None and lookup is not False:
        raise ValueError("draft and lookup cannot be combined; pass only one of them")
    if draft is None and lookup is False:
        if draft_tokens is None:
            return None
        raise ValueError(f"draft_tokens={draft_tokens} requires draft or lookup; pass one of them")
    tokens = {} if draft_tokens is None else {"tokens": draft_tokens}
    if draft is not None:
        return make_draft(tokenizer, *draft, **tokens)
    return Lookup(**({} if lookup is True else {"ngram": lookup}), **tokens)


def _tokenizer_error(reason: str) -> UserError:
    return UserError(
        f"the draft's tokenizer differs from the model's: {reason}; use a draft trained with the model's tokenizer"
    )


def _token_labels(tokenizer: Tokenizer) -> list[str]:
    """Return a description of each id, for comparisons and error messages."""
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
    grammars: Sequence[GrammarState] | None,
) -> Iterator[Pass]:
    ends = end_ids(tokenizer)
    if speculation is None:
        columns = stream(
            model, prompts, sampling, stop_ids=ends, seeds=seeds, finished_rows=finished_rows, grammars=grammars
        )
        return ([[] if token is None else [token] for token in column] for column in columns)
    if grammars is not None:
        raise UserError("draft and lookup cannot be combined with a JSON schema or a regex; leave one of them out")
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
    """The text of one row, decoded token by token.

    Args:
        tokenizer: Tokenizer of the model.
        stop: Stop strings.
        prompt_ids: Ids that precede the text.

    Attributes:
        tokens: Tokens so far.
        pieces: Text of each token, as `read` returned it.
        finish: Reason why the row ended; "length" while it continues.
        passes: Number of forward passes that produced the tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], *, prompt_ids: Sequence[int] = ()) -> None:
        self.tokens: list[Token] = []
        self.pieces: list[str] = []
        self.finish: Finish = "length"
        self.passes = 0
        self._decoder = tokenizer.stream(after=prompt_ids)
        self._matcher = StopMatcher(stop)

    def read(self, token: Token) -> str:
        """Add the next token and return the text that has become certain, which may be empty."""
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
        """Add the tokens of one forward pass, up to one that completes a stop string, and return the new text."""
        self.passes += bool(tokens)
        piece = ""
        for token in tokens:
            piece += self.read(token)
            if self.finish == "stop":
                break
        return piece

    def flush(self) -> str:
        """End the text and return the part of it that was held back."""
        return self._matcher.push(self._decoder.flush()) + self._matcher.flush()

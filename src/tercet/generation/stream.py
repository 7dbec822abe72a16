"""Token-by-token generation: a batch of prompts in, one column of tokens per step out.

The results are those of decoding without a KV cache. A row that has ended leaves the batch. If a row exceeds the
context, its oldest half is dropped (`window_start`) and all rows are prefilled again. Every other step reads one token
per row.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from torch import nn

from tercet.generation.decoding import Batch, BatchDecoding, decoding_of
from tercet.generation.grammar import GrammarState
from tercet.generation.protocol import AnyDecoder, CacheType, parts_of
from tercet.generation.specs import Sampling
from tercet.models.inference import inference_mode


@dataclass(frozen=True, kw_only=True)
class Token:
    """A sampled token.

    Attributes:
        id: Id of the token.
        logprob: Natural logarithm of the model's own probability, before temperature and filters.
        finish: "eos" for a stop id, which ends the row; "stop" if the row's grammar allows no further token; "length"
            if `max_new_tokens` is reached; None if the row continues.
    """

    id: int
    logprob: float
    finish: Literal["eos", "stop", "length"] | None = None


Column = list[Token | None]


def window_start(n: int, max_len: int) -> int:
    """Return the index of the first token that the model sees when it predicts token n.

    The model sees tokens[window_start(n, max_len) : n]. If they exceed the context, the oldest half is dropped, so the
    visible length grows from max_len // 2 + 1 to max_len before tokens are dropped again. Dropping one token at a time
    would shift all positions in each step, and the KV cache could not be reused.
    """
    if n <= max_len:
        return 0
    half = max_len - max_len // 2
    drops = -(-(n - max_len) // half)  # rounded up
    return drops * half


def window_moved(n: int, max_len: int) -> bool:
    """Return whether tokens are dropped before token n is predicted, so that a prefill is needed."""
    return window_start(n, max_len) != window_start(n - 1, max_len)


def check_seeds(prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int] | None) -> Sequence[int]:
    """Return one seed per prompt: `seeds`, or the seed of `sampling` for all.

    Raises:
        ValueError: If a prompt is empty, or the numbers of seeds and prompts differ.
    """
    for number, prompt in enumerate(prompts, 1):
        if len(prompt) == 0:
            raise ValueError(f"prompt {number} of {len(prompts)} is empty; pass at least one token")
    if seeds is None:
        seeds = [sampling.seed] * len(prompts)
    if len(seeds) != len(prompts):
        raise ValueError(f"expected {len(prompts)} seeds, one per prompt, got {len(seeds)}")
    return seeds


def stream(
    model: AnyDecoder[CacheType],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    sources: Sequence[Sequence[int]] | None = None,
    source_pad: int = 0,
    stop_ids: Set[int] = frozenset(),
    forbidden: Set[int] = frozenset(),
    seeds: Sequence[int] | None = None,
    finished_rows: Set[int] = frozenset(),
    grammars: Sequence[GrammarState] | None = None,
) -> Iterator[Column]:
    """Yield one column per step with the next token of each row, or None for ended rows.

    Args:
        model: A `Decoder` or `SourceDecoder`. Between two columns it is in its original mode (train or eval).
        prompts: Token ids of each row, at least one per row. May exceed the context length; see `window_start`.
        sampling: Sampling settings. Stop strings are not applied here; see `generate` and `stream_text`.
        sources: Source ids of each row, for a `SourceDecoder`.
        source_pad: Any id of the source vocabulary, for padding.
        stop_ids: Ids that end a row when they are *sampled*; the stop id is the last token of its row.
        forbidden: Ids that are never sampled.
        seeds: Seed of each row; by default `sampling.seed` for all rows, as if each row were the only one.
        finished_rows: Indices of rows to end; the caller may add rows to this set between two columns.
        grammars: Grammar of each row, before its first new token. The sampled tokens are added to it.

    Raises:
        ValueError: If a prompt is empty, or the numbers of prompts, seeds and sources differ.
        UserError: While iterating, if the model's outputs are NaN, or a grammar cannot be continued.
    """
    seeds = check_seeds(prompts, sampling, seeds)
    if sources is not None and len(sources) != len(prompts):
        raise ValueError(f"expected {len(prompts)} sources, one per prompt, got {len(sources)}")
    batch = Batch(
        rows=[list(prompt) for prompt in prompts],
        sources=sources,
        source_pad=source_pad,
        sampling=sampling,
        forbidden=forbidden,
        seeds=seeds,
        grammars=grammars,
    )
    return _columns(model, batch, stop_ids, finished_rows)


def finish_of(
    token: int, stop_ids: Set[int], left: int, grammar: GrammarState | None
) -> Literal["eos", "stop", "length"] | None:
    """Return the reason why a row ends with a sampled token, which is added to its grammar; None if it continues.

    Args:
        token: The token.
        stop_ids: Ids that end a row.
        left: Number of tokens that may still be sampled.
        grammar: Grammar of the row, or None.

    Raises:
        UserError: If no token of the vocabulary continues the grammar.
    """
    if token in stop_ids:
        return "eos"
    if grammar is not None:
        grammar.advance(token)
        if grammar.is_complete:
            return "stop"
    return None if left else "length"


def _columns(
    model: AnyDecoder[CacheType], batch: Batch, stop_ids: Set[int], finished_rows: Set[int]
) -> Iterator[Column]:
    if not batch.rows or not batch.sampling.max_new_tokens:
        return
    with decoding_of(model, batch) as decoding:
        yield from columns(decoding, batch, parts_of(model), model.max_len, stop_ids, finished_rows)


def columns(
    decoding: BatchDecoding,
    batch: Batch,
    parts: Sequence[nn.Module],
    max_len: int,
    stop_ids: Set[int],
    finished_rows: Set[int],
) -> Iterator[Column]:
    """Yield the columns of `stream` for a given decoding state.

    Args:
        decoding: State of the batch, before the prefill.
        batch: Rows of the batch, at least one; the tokens are appended to them.
        parts: Modules of the model, which are in eval mode during each step.
        max_len: Context length of the model.
        stop_ids: As in `stream`.
        finished_rows: As in `stream`.
    """
    rows, left = batch.rows, batch.sampling.max_new_tokens
    live = list(range(len(rows)))  # row in each slot of the batch

    def read_live() -> None:
        """Prefill the visible tokens of each live row, with capacity for the remaining tokens."""
        visible = [rows[row][window_start(len(rows[row]), max_len) :] for row in live]
        decoding.read(live, visible, capacity=min(max_len, max(map(len, visible)) + left))

    with inference_mode(parts):
        read_live()
    while True:
        launch_next = left > 1 and not any(window_moved(len(rows[row]) + 1, max_len) for row in live)
        with inference_mode(parts):
            ids, logprobs = decoding.sample(launch_next=launch_next)
        left -= 1
        column: Column = [None] * len(rows)
        ended = set[int]()
        for row, token, logprob in zip(live, ids, logprobs, strict=True):
            grammar = None if batch.grammars is None else batch.grammars[row]
            finish = finish_of(token, stop_ids, left, grammar)
            column[row] = Token(id=token, logprob=logprob, finish=finish)
            rows[row].append(token)
            if finish:
                ended.add(row)
        yield column
        if not left:
            return
        slots = [slot for slot, row in enumerate(live) if row not in ended and row not in finished_rows]
        live = [live[slot] for slot in slots]
        if not live:
            return
        with inference_mode(parts):
            if any(window_moved(len(rows[row]), max_len) for row in live):
                read_live()
            else:
                decoding.keep(slots)

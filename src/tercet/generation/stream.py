"""Token by token: a batch of prompts in, one column of tokens a step out, with a cache that never changes the outcome.

A row that has ended leaves the batch, so the work of a `StepDecoding` shrinks with it. A row that outgrows the context
forgets its oldest half (`window_start`) and is read anew; until then every step costs one token.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from torch import nn

from tercet.generation.decoding import Batch, BatchDecoding, decoding_of
from tercet.generation.protocol import AnyDecoder, CacheType, parts_of
from tercet.generation.specs import Sampling
from tercet.models.inference import inference_mode


@dataclass(frozen=True, kw_only=True)
class Token:
    """A drawn token; `finish` says why, where it is the last of its row."""

    id: int
    logprob: float  # natural log of the model's own probability, before temperature and filters
    finish: Literal["eos", "length"] | None = None  # a stop id was drawn, or max_new_tokens are


Column = list[Token | None]


def window_start(n: int, max_len: int) -> int:
    """The first token that the model sees when it predicts token n: it sees tokens[window_start(n, max_len) : n].

    All of them while they fit. Where they do not, the oldest half is dropped, so what is seen grows from
    max_len // 2 + 1 back to max_len before the next drop. Dropping one token at a time would move every position at
    every step, and no cache could be kept.
    """
    if n <= max_len:
        return 0
    half = max_len - max_len // 2
    drops = -(-(n - max_len) // half)  # rounded up
    return drops * half


def window_moved(n: int, max_len: int) -> bool:
    """Whether the model forgot tokens between the predictions of token n - 1 and of token n, and has to read anew."""
    return window_start(n, max_len) != window_start(n - 1, max_len)


def check_seeds(prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int] | None) -> Sequence[int]:
    """A seed for each prompt: those given, or the sampling's own for all.

    Raises:
        ValueError: for an empty prompt, or where there are not as many seeds as prompts.
    """
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompt {row} of {len(prompts)} is empty: a prompt needs at least one token")
    if seeds is None:
        seeds = [sampling.seed] * len(prompts)
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many seeds, got {len(seeds)}")
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
) -> Iterator[Column]:
    """Continue each prompt, yielding one column a step: for each row its next token, or None once it has ended.

    Args:
        model: see `Decoder` and `SourceDecoder`; between two columns it is in the mode in which it was found.
        prompts: token ids of each row, at least one; longer than the context is well, `window_start` says what is seen.
        sampling: how to draw; its `stop` texts belong to `generate` and `stream_text`.
        sources: one for each row, where the model is a `SourceDecoder`; `source_pad` is any id of their vocabulary.
        stop_ids: ids that end a row when they are *drawn*; the stop id is the row's last token.
        forbidden: ids that are never drawn.
        seeds: one for each row; by default `sampling.seed` for every row, as if each were alone.
        finished_rows: a set that the caller may add rows to between two columns; they leave the batch.

    Raises:
        ValueError: for an empty prompt, or where there are not as many seeds or sources as prompts.
    """
    seeds = check_seeds(prompts, sampling, seeds)
    if sources is not None and len(sources) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many sources, got {len(sources)}")
    batch = Batch(
        rows=[list(prompt) for prompt in prompts],
        sources=sources,
        source_pad=source_pad,
        sampling=sampling,
        forbidden=forbidden,
        seeds=seeds,
    )
    return _columns(model, batch, stop_ids, finished_rows)


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
    """Yield the columns of `stream`, decoded in this way.

    Args:
        decoding: The state of the batch, not read yet.
        batch: The rows, to which the tokens are appended; at least one.
        parts: The model's modules, which are in eval mode during each step.
        max_len: The model's context.
        stop_ids: As in `stream`.
        finished_rows: As in `stream`.
    """
    rows, left = batch.rows, batch.sampling.max_new_tokens
    live = list(range(len(rows)))  # the row in each slot of the batch

    def read_live() -> None:
        """Read what each live row sees, with room for the tokens left to draw."""
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
        for row, token, logprob in zip(live, ids, logprobs, strict=True):
            finish = "eos" if token in stop_ids else None if left else "length"
            column[row] = Token(id=token, logprob=logprob, finish=finish)
            rows[row].append(token)
        yield column
        if not left:
            return
        slots = [slot for slot, row in enumerate(live) if rows[row][-1] not in stop_ids and row not in finished_rows]
        live = [live[slot] for slot in slots]
        if not live:
            return
        with inference_mode(parts):
            if any(window_moved(len(rows[row]), max_len) for row in live):
                read_live()
            else:
                decoding.keep(slots)

"""Token by token: a batch of prompts in, one column of tokens a step out, with a cache that never changes the outcome.

A row that has ended leaves the batch, so the work shrinks with it. A row that outgrows the context forgets its oldest
half (`window_start`) and is read anew; until then every step costs one token.
"""

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.config import UserError
from tercet.generation.prefill import prefill
from tercet.generation.protocol import AnyDecoder, CacheType, device_of, parts_of
from tercet.generation.sampling import DIVERGED, distribution, draw
from tercet.generation.specs import Sampling
from tercet.models.inference import inference_mode
from tercet.objectives import token_logprobs


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


def choose(
    logits: Float[Tensor, "B V"],
    rows: Sequence[Sequence[int]],
    sampling: Sampling,
    generators: Sequence[torch.Generator],
) -> Int[Tensor, " B"]:
    """The next token of each row, drawn from that row's own generator; `rows` are their tokens so far.

    Raises:
        UserError: as `draw`; no generator has moved then.
    """
    if sampling.temperature == 0 and sampling.repetition_penalty == 1:  # the same choice, without the distribution
        if not bool(logits.amax(-1).isfinite().all()):
            raise UserError(DIVERGED)
        return logits.argmax(-1)  # the first of equals
    seen_mask = mark_seen(rows, logits) if sampling.repetition_penalty != 1 else None
    return draw(distribution(logits, sampling, seen_mask), generators)


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
    ended: Set[int] = frozenset(),
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
        ended: a set that the caller may add rows to between two columns; they leave the batch.

    Raises:
        ValueError: for an empty prompt, or where there are not as many seeds or sources as prompts.
    """
    seeds = check_seeds(prompts, sampling, seeds)
    if sources is not None and len(sources) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many sources, got {len(sources)}")
    rows = [list(prompt) for prompt in prompts]
    return _columns(model, rows, sources, source_pad, sampling, stop_ids, forbidden, seeds, ended)


def _columns(
    model: AnyDecoder[CacheType],
    rows: list[list[int]],
    sources: Sequence[Sequence[int]] | None,
    source_pad: int,
    sampling: Sampling,
    stop_ids: Set[int],
    forbidden: Set[int],
    seeds: Sequence[int],
    ended: Set[int],
) -> Iterator[Column]:
    parts, device = parts_of(model), device_of(model)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    live = list(range(len(rows)))  # the row in each slot of the batch
    left = sampling.max_new_tokens
    forbidden_ids = torch.tensor(sorted(forbidden), dtype=torch.long, device=device)
    if not live or not left:
        return

    def prefill_live() -> tuple[Float[Tensor, "B V"], CacheType]:
        """Read what each live row sees, with room for the tokens left to draw."""
        visible = [rows[row][window_start(len(rows[row]), model.max_len) :] for row in live]
        row_sources = None if sources is None else [sources[row] for row in live]
        capacity = min(model.max_len, max(map(len, visible)) + left)
        return prefill(model, visible, sources=row_sources, source_pad=source_pad, capacity=capacity, device=device)

    with inference_mode(parts):
        logits, cache = prefill_live()
    while True:
        with inference_mode(parts):
            drawable = logits.index_fill(-1, forbidden_ids, -math.inf) if forbidden else logits
            ids = choose(drawable, [rows[row] for row in live], sampling, [generators[row] for row in live])
            logprobs = token_logprobs(logits, ids)
        left -= 1
        column: Column = [None] * len(rows)
        for row, token, logprob in zip(live, ids.tolist(), logprobs.tolist(), strict=True):
            finish = "eos" if token in stop_ids else None if left else "length"
            column[row] = Token(id=token, logprob=logprob, finish=finish)
            rows[row].append(token)
        yield column
        if not left:
            return
        live_slots = [slot for slot, row in enumerate(live) if rows[row][-1] not in stop_ids and row not in ended]
        shrunk = len(live_slots) < len(live)
        live = [live[slot] for slot in live_slots]
        if not live:
            return
        with inference_mode(parts):
            if any(window_moved(len(rows[row]), model.max_len) for row in live):
                logits, cache = prefill_live()
            else:
                if shrunk:
                    cache.reorder(torch.tensor(live_slots, device=device))
                logits = model.step(torch.tensor([rows[row][-1] for row in live], device=device), cache)


def mark_seen(rows: Iterable[Sequence[int]], logits: Float[Tensor, "B V"]) -> Bool[Tensor, "B V"]:
    """The tokens that each row holds."""
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for slot, row in enumerate(rows):
        seen[slot, torch.tensor(row, device=logits.device)] = True
    return seen

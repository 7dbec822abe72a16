"""Token by token: a batch of prompts in, one column of tokens a step out, with a cache that never changes the outcome.

A row that has ended leaves the batch, so the work shrinks with it. A row that outgrows the context forgets its oldest
half (`window_start`) and is read anew; until then every step costs one token.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.generation.protocol import CacheType, Decoder, at_rest, device_of, parts_of
from tercet.generation.sampling import Sampling, distribution, draw


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


def stream(
    model: Decoder[CacheType],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    stop_ids: Set[int] = frozenset(),
    seeds: Sequence[int] | None = None,
    ended: Set[int] = frozenset(),
) -> Iterator[Column]:
    """Continue each prompt, yielding one column a step: for each row its next token, or None once it has ended.

    Args:
        model: see `Decoder`; between two columns it is in the mode, training or not, in which it was found.
        prompts: token ids of each row, at least one; longer than the context is well, `window_start` says what is seen.
        sampling: how to draw; its `stop` texts belong to `generate` and `stream_text`.
        stop_ids: ids that end a row when they are *drawn*; the stop id is the row's last token.
        seeds: one for each row; by default `sampling.seed` for every row, as if each were alone.
        ended: a set that the caller may add rows to between two columns; they leave the batch.

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
    return _columns(model, [list(prompt) for prompt in prompts], sampling, stop_ids, seeds, ended)


def _columns(
    model: Decoder[CacheType],
    rows: list[list[int]],
    sampling: Sampling,
    stop_ids: Set[int],
    seeds: Sequence[int],
    ended: Set[int],
) -> Iterator[Column]:
    parts, device = parts_of(model), device_of(model)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    live = list(range(len(rows)))  # the row in each slot of the batch
    left = sampling.max_new_tokens
    if not live or not left:
        return
    with at_rest(parts):
        logits, cache = _read(model, rows, left, device)
    while True:
        with at_rest(parts):
            seen = _seen([rows[row] for row in live], logits) if sampling.repetition_penalty != 1 else None
            ids = draw(distribution(logits, sampling, seen), [generators[row] for row in live])
            logprobs = logits.float().log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)
        left -= 1
        column: Column = [None] * len(rows)
        for row, token, logprob in zip(live, ids.tolist(), logprobs.tolist(), strict=True):
            finish = "eos" if token in stop_ids else None if left else "length"
            column[row] = Token(id=token, logprob=logprob, finish=finish)
            rows[row].append(token)
        yield column
        if not left:
            return
        kept = [slot for slot, row in enumerate(live) if rows[row][-1] not in stop_ids and row not in ended]
        shrunk = len(kept) < len(live)
        live = [live[slot] for slot in kept]
        if not live:
            return
        with at_rest(parts):
            if any(_moved(len(rows[row]), model.max_len) for row in live):
                logits, cache = _read(model, [rows[row] for row in live], left, device)
            else:
                if shrunk:
                    cache.reorder(torch.tensor(kept, device=device))
                logits = model.step(torch.tensor([rows[row][-1] for row in live], device=device), cache)


def _moved(n: int, max_len: int) -> bool:
    return window_start(n, max_len) != window_start(n - 1, max_len)


def _read(
    model: Decoder[CacheType], rows: Sequence[Sequence[int]], left: int, device: torch.device
) -> tuple[Float[Tensor, "B V"], CacheType]:
    """Read what each row sees, with room for the tokens left to draw: the next logits and a new cache."""
    visible = [tuple(row[window_start(len(row), model.max_len) :]) for row in rows]
    distinct = list(dict.fromkeys(visible))  # samples of one prompt are read once
    longest = max(map(len, distinct))
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in distinct], device=device)
    lengths = torch.tensor([len(row) for row in distinct], device=device)
    logits, cache = model.start(tokens, lengths, capacity=min(model.max_len, longest + left))
    if len(distinct) < len(rows):
        number = {row: slot for slot, row in enumerate(distinct)}
        slots = torch.tensor([number[row] for row in visible], device=device)
        cache.reorder(slots)
        logits = logits[slots]
    return logits, cache


def _seen(rows: Sequence[Sequence[int]], logits: Float[Tensor, "B V"]) -> Bool[Tensor, "B V"]:
    """The tokens that each row holds."""
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for slot, row in enumerate(rows):
        seen[slot, torch.tensor(row, device=logits.device)] = True
    return seen

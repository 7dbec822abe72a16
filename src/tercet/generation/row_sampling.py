"""Sampling on the device: each row has its own settings and uniform numbers drawn in advance.

    logits (B, V) --filters of each row--> probabilities (B, V) --its uniform number--> ids (B,)

The filters are those of `filters.py` and the draw is that of `sampling.py`, with the settings in tensors. No operation
waits for the device, so all of them can be part of a CUDA graph. `Filters` lists the operations that are applied at
all, so a filter that no row uses takes no time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.generation.filters import (
    cumsum,
    finite_temperature,
    keep_above_ratio,
    keep_from_kth,
    keep_nucleus,
    min_p_ratio,
    nucleus_share,
    penalize_repetition,
)
from tercet.generation.specs import Sampling


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The operations that the settings of a batch require.

    Batches with equal operations run the same graph.
    """

    draws: bool = False  # a row has a temperature above 0
    penalty: bool = False
    top_k: int = 0  # at least the largest k of any row, a power of two; 0 if no row has one
    top_p: bool = False
    min_p: bool = False
    forbids: bool = False
    likeliest: int = 0  # number of most likely tokens that are reported with each sampled token

    @classmethod
    def of(
        cls, samplings: Sequence[Sampling], vocab_size: int, *, forbids: bool = False, likeliest: int = 0
    ) -> "Filters":
        """Return the operations for rows with these settings.

        Args:
            samplings: Settings of each row.
            vocab_size: Number of logits; a larger `top_k` has no effect.
            forbids: If True, some ids are never sampled.
            likeliest: Number of most likely tokens that are reported with each sampled token.
        """
        largest = max((_limiting_k(sampling, vocab_size) for sampling in samplings), default=0)
        return cls(
            draws=any(sampling.temperature > 0 for sampling in samplings),
            penalty=any(sampling.repetition_penalty != 1 for sampling in samplings),
            top_k=min(vocab_size, 1 << (largest - 1).bit_length()) if largest else 0,
            top_p=any(sampling.top_p is not None and sampling.top_p < 1 for sampling in samplings),
            min_p=any(sampling.min_p is not None and sampling.min_p > 0 for sampling in samplings),
            forbids=forbids,
            likeliest=likeliest,
        )


class RowSettings:
    """The sampling settings of each row, as columns of one tensor.

    Args:
        table: The settings (B, 5): temperature, top_k, nucleus share, min-p ratio and repetition penalty.
    """

    COLUMNS = 5

    def __init__(self, table: Float[Tensor, "B 5"]) -> None:
        self.table = table

    @staticmethod
    def encode(samplings: Sequence[Sampling], vocab_size: int) -> Float[Tensor, "B 5"]:
        """Return the rows of the table for these settings, on the CPU.

        A setting that is None is written as a value without effect.

        Args:
            samplings: Settings of each row.
            vocab_size: Number of logits; a larger `top_k` has no effect.
        """
        rows = [
            [
                0.0 if sampling.temperature == 0 else finite_temperature(sampling.temperature),
                _limiting_k(sampling, vocab_size),  # exact in float32 up to 2**24
                math.inf if sampling.top_p is None else nucleus_share(sampling.top_p),
                -math.inf if sampling.min_p is None else min_p_ratio(sampling.min_p),
                sampling.repetition_penalty,
            ]
            for sampling in samplings
        ]
        return torch.tensor(rows, dtype=torch.float32).view(-1, RowSettings.COLUMNS)

    def columns(self) -> tuple[Tensor, ...]:
        """Return each setting as a tensor (B, 1), in the order of the table."""
        return self.table.split(1, dim=-1)


class UniformNumbers:
    """The uniform numbers with which `sampling.draw` would draw a row's tokens, available before they are used.

    Args:
        generator: Generator of the row, on the CPU.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._buffer = torch.zeros(0, dtype=torch.float64)

    def peek(self, count: int) -> Float[Tensor, " N"]:
        """Return the next `count` numbers in [0, 1), without marking them as used."""
        missing = count - len(self._buffer)
        if missing > 0:
            new = torch.rand(missing, dtype=torch.float64, generator=self._generator)
            self._buffer = torch.cat((self._buffer, new))
        return self._buffer[:count]

    def skip(self, count: int) -> None:
        """Mark the next `count` numbers as used. They must have been returned by `peek`."""
        self._buffer = self._buffer[count:]


def choose_rows(
    logits: Float[Tensor, "B V"],
    settings: RowSettings,
    filters: Filters,
    *,
    uniform: Float[Tensor, " B"],
    seen_mask: Bool[Tensor, "B V"],
    forbidden: Bool[Tensor, " V"],
) -> tuple[Int[Tensor, " B"], Bool[Tensor, " B"]]:
    """Return the next token of each row, and True for rows with an empty distribution.

    A distribution is empty if the model diverged. The ids are those of `sampling.choose` for the same logits and
    uniform numbers.

    Args:
        logits: Next-token logits in any floating dtype.
        settings: Settings of each row.
        filters: Operations to apply; must include those that the settings require, as from `Filters.of`.
        uniform: Number in [0, 1) for each row, in float64.
        seen_mask: True at tokens that the row contains, for the repetition penalty.
        forbidden: True at ids that are never sampled.
    """
    temperature, top_k, share, ratio, penalty = settings.columns()  # (B, 1) each
    logits = logits.float()
    if filters.forbids:
        logits = logits.masked_fill(forbidden, -math.inf)
    if filters.penalty:
        logits = penalize_repetition(logits, seen_mask, penalty)
    largest, best = logits.amax(-1, keepdim=True), logits.argmax(-1)  # the first of equals
    diverged = ~largest.isfinite().squeeze(-1)
    if not filters.draws:
        return best, diverged
    is_greedy = temperature == 0
    logits = (logits - largest) / torch.where(is_greedy, 1.0, temperature)
    if filters.top_k:
        k = top_k.long()
        kth = logits.topk(filters.top_k, dim=-1).values.gather(-1, (k - 1).clamp(min=0))  # (B, 1)
        logits = torch.where(k > 0, keep_from_kth(logits, kth, k), logits)
    if filters.top_p:
        logits = keep_nucleus(logits, share)
    if filters.min_p:
        logits = keep_above_ratio(logits, ratio)
    sampled_ids, is_empty = draw_rows(logits.softmax(-1).double(), uniform)
    is_greedy = is_greedy.squeeze(-1)
    return torch.where(is_greedy, best, sampled_ids), torch.where(is_greedy, diverged, is_empty)


def draw_rows(p: Float[Tensor, "*B V"], uniform: Float[Tensor, "*B"]) -> tuple[Int[Tensor, "*B"], Bool[Tensor, "*B"]]:
    """Return a token for each distribution, as in `sampling.draw`, and True for distributions that are empty.

    Args:
        p: Probabilities in float64.
        uniform: Number in [0, 1) for each distribution, in float64.
    """
    sums = cumsum(p)
    total = sums[..., -1:]
    ids = torch.searchsorted(sums, uniform[..., None] * total, right=True).squeeze(-1)
    return ids.clamp(max=p.shape[-1] - 1), ~(total > 0).squeeze(-1)  # past the end only if the row diverged


def _limiting_k(sampling: Sampling, vocab_size: int) -> int:
    """Return the row's top_k, or 0 if it excludes no token."""
    return 0 if sampling.top_k is None or sampling.top_k >= vocab_size else sampling.top_k

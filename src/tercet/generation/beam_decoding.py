"""Candidates for a beam search, computed with one call of the model per step.

    candidates of each live sentence  ->  the host finds finished hypotheses  ->  advance the live ones  ->  candidates
        ...

`StepBeams` and `beam_graphs.GraphBeams` continue the same hypotheses: of the candidates, best first, the first `size`
that do not end.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Generic, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.config import UserError
from tercet.generation.best_continuations import best_continuations
from tercet.generation.prefill import prefill
from tercet.generation.protocol import AnyDecoder, CacheType, device_of
from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.kernel import top_tokens

# Log-probability of each candidate, index of the hypothesis that it continues, and its last token.
Candidates = tuple[np.ndarray, np.ndarray, np.ndarray]

GROWTH = 8  # columns by which the cache grows at a time; few, since the time of a step grows with the cache's width


@dataclass(frozen=True, kw_only=True)
class BeamBatch:
    """The sentences of a search.

    Attributes:
        limits: Maximum number of generated tokens per hypothesis, for each sentence.
        shortest: Minimum number of generated tokens before the end token, for each sentence.
        size: Number of hypotheses per sentence.
    """

    prefixes: Sequence[Sequence[int]]
    sources: Sequence[Sequence[int]] | None
    source_pad: int
    limits: Sequence[int]
    shortest: Sequence[int]
    size: int
    eos_id: int
    forbidden: Set[int]

    @property
    def count(self) -> int:
        """Number of candidates per sentence.

        At most `size` of 2 * size candidates end, so `size` can continue. Greedy search needs only the best one.
        """
        return 1 if self.size == 1 else 2 * self.size

    @property
    def columns(self) -> int:
        """Number of cache columns that the search needs: a prefix and its hypothesis without the last token."""
        return max(len(prefix) + limit - 1 for prefix, limit in zip(self.prefixes, self.limits, strict=True))


class BeamDecoding(Protocol):
    """The hypotheses of the live sentences. All methods are called in inference mode."""

    def candidates(self) -> Candidates:
        """Return the `count` best continuations of each live sentence as (N, count) arrays, best first.

        Each sentence has one hypothesis, its prefix, at the first call. Missing continuations have log-probability
        -inf.

        Raises:
            UserError: If the model diverged.
        """
        ...

    def advance(self, live: Sequence[int], values: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> None:
        """Continue the selected hypotheses of some sentences, and drop the other sentences.

        Args:
            live: Positions, in the last candidates, of the sentences to continue.
            values: Log-probabilities (N, size) of the selected hypotheses of all N sentences, -inf for a missing one.
            parents: Hypotheses (N, size) that they continue.
            tokens: Their last tokens (N, size).
        """
        ...


class StepBeams(Generic[CacheType]):
    """Beam search with one call of the model per step; the host selects the hypotheses.

    Args:
        model: Any decoder.
        batch: The sentences.
    """

    def __init__(self, model: AnyDecoder[CacheType], batch: BeamBatch) -> None:
        self._model, self._batch, self._device = model, batch, device_of(model)
        self._live = list(range(len(batch.prefixes)))
        self._capacity = min(batch.columns, max(map(len, batch.prefixes)) + GROWTH)
        self._forbidden = torch.tensor(sorted(batch.forbidden), dtype=torch.long, device=self._device)
        self._logits, self._cache = prefill(
            model, batch.prefixes, sources=batch.sources, source_pad=batch.source_pad, capacity=self._capacity,
            device=self._device,
        )  # fmt: skip
        # (N, H): log-probabilities so far, -inf for a missing hypothesis
        self._alive = torch.zeros(len(self._live), 1, device=self._device)
        self._length = 0

    def candidates(self) -> Candidates:
        is_early = torch.tensor([self._length < self._batch.shortest[number] for number in self._live])
        count, eos_id = self._batch.count, self._batch.eos_id
        continuations = _best(
            self._logits, self._alive, count, forbidden=self._forbidden, eos_id=eos_id, is_early=is_early
        )
        self._length += 1
        if np.isnan(continuations[0]).any():
            raise UserError(DIVERGENCE_MESSAGE)
        return continuations

    def advance(self, live: Sequence[int], values: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> None:
        hypotheses, size = self._alive.shape[1], self._batch.size
        rows = (np.array(live)[:, None] * hypotheses + parents[live, :hypotheses]).ravel()
        if len(rows) < self._alive.numel() or (rows != np.arange(len(rows))).any():
            self._cache.reorder(torch.from_numpy(rows).to(self._device))
        if hypotheses < size:
            self._cache.expand_beams(size)
        self._live = [self._live[slot] for slot in live]
        columns_needed = max(len(self._batch.prefixes[number]) for number in self._live) + self._length
        if columns_needed > self._capacity:
            self._capacity = min(self._batch.columns, columns_needed - 1 + GROWTH)
            self._cache.grow(self._capacity)
        self._alive = torch.from_numpy(values[live]).to(self._device)
        self._logits = self._model.step(torch.from_numpy(tokens[live].ravel()).to(self._device), self._cache)


def _best(logits: Tensor, alive: Tensor, count: int, *, forbidden: Tensor, eos_id: int, is_early: Tensor) -> Candidates:
    best = top_tokens(logits, alive, count, forbidden=forbidden, eos_id=eos_id, is_early=is_early)
    if best is None:
        is_early = is_early.to(logits.device)
        continuations = best_allowed(logits, alive, count, forbidden=forbidden, eos_id=eos_id, is_early=is_early)
        # One copy to the host. MPS lacks float64, and float32 is exact for ids below 2^24.
        dtype = torch.float32 if logits.device.type == "mps" else torch.float64
        values, parents, tokens = torch.stack([part.to(dtype) for part in continuations]).cpu().numpy()
        return values.astype(np.float32), parents.astype(np.int64), tokens.astype(np.int64)
    values, parents, tokens = best
    return values.numpy(), parents.numpy(), tokens.numpy()


def best_allowed(
    logits: Float[Tensor, "R V"],
    alive: Float[Tensor, "N H"],
    count: int,
    *,
    forbidden: Int[Tensor, " F"],
    eos_id: int,
    is_early: Bool[Tensor, " N"],
) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"], Int[Tensor, "N C"]]:
    """Return the log-probabilities, hypotheses and last tokens of the best continuations of each sentence.

    All three tensors are computed without waiting for the device. There are always `count` continuations; missing ones
    have log-probability -inf.

    Args:
        logits: Next-token logits, R = N H rows.
        alive: Log-probability of each hypothesis so far.
        count: Number of continuations.
        forbidden: Ids that are never generated.
        eos_id: Id that ends a hypothesis.
        is_early: True for sentences whose hypotheses may not end yet.
    """
    logprobs = logits.float().log_softmax(-1).unflatten(0, alive.shape)  # (N, H, V)
    logprobs.index_fill_(-1, forbidden, -math.inf)
    logprobs[..., eos_id].masked_fill_(is_early[:, None], -math.inf)
    continuations = best_continuations(logprobs, alive, count)
    missing = count - continuations[0].shape[1]
    values, parents, tokens = (
        torch.nn.functional.pad(numbers, (0, missing), value=value)
        for numbers, value in zip(continuations, (-math.inf, 0, 0), strict=True)
    )
    return values, parents, tokens

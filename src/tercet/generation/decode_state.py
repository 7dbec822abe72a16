"""A decode step that reads and writes tensors at fixed addresses only, so that it can be captured as a CUDA graph.

    step:  tokens -> model.step -> logits -> choose_rows -> tokens, seen, results

The host writes a row's settings and uniform numbers before its first step and reads `results` after each one. A row
that has ended is not marked: its further results are ignored, and its length grows beyond the spare column.
"""

from copy import copy
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.generation.row_sampling import Filters, RowSettings, choose_rows
from tercet.nn.cache import StackCache
from tercet.objectives import token_logprobs

RESULTS = 3  # numbers for each row: id, log-probability, and 1.0 if the model diverged


class SteppingModel(Protocol):
    """The part of a model that a decode step uses."""

    def step(self, tokens: Int[Tensor, " B"], cache: StackCache, /) -> Float[Tensor, "B V"]: ...


class DecodeState:
    """Tensors that a decode step reads and writes, with a row for each row of the cache.

    Args:
        cache: The KV cache; its lengths are advanced in place.
        vocab_size: Number of logits.

    Attributes:
        tokens: Last token of each row, which is not in the cache yet.
        uniform: Number in [0, 1) for the token to be drawn at each position, drawn in advance by the row's own
            generator.
        settings: Sampling settings of each row.
        seen: Tokens that each row holds.
        forbidden: Tokens that no row may draw.
        results: Id, log-probability and divergence flag of the last step; float64 holds any id.
    """

    def __init__(self, cache: StackCache, vocab_size: int) -> None:
        rows, device = len(cache.lengths), cache.lengths.device
        self.cache = cache
        self.tokens: Int[Tensor, " B"] = torch.zeros(rows, dtype=torch.long, device=device)
        self.uniform: Float[Tensor, "B S"] = torch.zeros(rows, cache.capacity + 1, dtype=torch.float64, device=device)
        self.settings = RowSettings(torch.zeros(rows, RowSettings.COLUMNS, device=device))
        self.seen: Bool[Tensor, "B V"] = torch.zeros(rows, vocab_size, dtype=torch.bool, device=device)
        self.forbidden: Bool[Tensor, " V"] = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.results: Float[Tensor, "B 3"] = torch.zeros(rows, RESULTS, dtype=torch.float64, device=device)

    def view(self, rows: int, capacity: int) -> "DecodeState":
        """Return the first rows with the first columns of their cache, in the same memory."""
        part = copy(self)
        part.cache = self.cache.view(self.cache.lengths[:rows], capacity)
        part.tokens, part.uniform = self.tokens[:rows], self.uniform[:rows, : capacity + 1]
        part.settings = RowSettings(self.settings.table[:rows])
        part.seen, part.results = self.seen[:rows], self.results[:rows]
        return part

    def changing(self) -> list[Tensor]:
        """Return the tensors that a step changes, except for columns of the cache that are not visible yet."""
        return [self.tokens, self.cache.lengths, self.seen, self.results]


def decode_step(model: SteppingModel, state: DecodeState, filters: Filters) -> None:
    """Append each row's last token to the cache, and sample the next one."""
    sample(model.step(state.tokens, state.cache), state, filters)


def sample(logits: Float[Tensor, "B V"], state: DecodeState, filters: Filters) -> None:
    """Choose a token for each row and write it into the state; nothing waits for the device."""
    at = state.cache.lengths.clamp(max=state.uniform.shape[1] - 1)[:, None]
    ids, diverged = choose_rows(
        logits,
        state.settings,
        filters,
        uniform=state.uniform.gather(1, at).squeeze(1),
        seen=state.seen,
        forbidden=state.forbidden,
    )
    state.tokens.copy_(ids)
    if filters.penalty:
        state.seen.scatter_(1, ids[:, None], True)
    logprobs = token_logprobs(logits, ids)
    state.results.copy_(torch.stack((ids.double(), logprobs.double(), diverged.double()), dim=-1))

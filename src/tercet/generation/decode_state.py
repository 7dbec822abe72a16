"""A decode step with tensors at fixed addresses, so that it can be captured as a CUDA graph.

    step:  tokens -> model.step -> logits -> choose_rows -> tokens, seen_mask, results

The host writes a row's settings and uniform numbers before its first step and reads `results` after each one. Rows that
have ended are still decoded, since the device does not know that they have. Their results are ignored, and beyond the
cache's capacity their keys and values are written to its spare column.
"""

from copy import copy
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.generation.row_sampling import Filters, RowSettings, choose_rows
from tercet.nn.cache import StackCache
from tercet.objectives import token_logprobs

# The first numbers in each row of the results: id, log-probability, and 1.0 if the model diverged (else 0.0).
N_RESULTS = 3


class SteppingModel(Protocol):
    """The part of a model that a decode step uses."""

    def step(self, tokens: Int[Tensor, " B"], cache: StackCache, /) -> Float[Tensor, "B V"]: ...


class DecodeState:
    """Tensors that a decode step reads and writes, with a row for each row of the cache.

    Args:
        cache: The KV cache; its lengths are advanced in place.
        vocab_size: Number of logits.
        max_len: Context length of the model.
        likeliest: Maximum number of most likely tokens that are reported with each sampled token.

    Attributes:
        tokens: Last token of each row, which is not in the cache yet.
        uniform: Number in [0, 1) with which the token at each position is drawn, from the row's generator.
        settings: Sampling settings of each row.
        seen_mask: True at tokens that the row contains.
        forbidden: True at ids that are never sampled.
        results: Id, log-probability and divergence flag of the last step, then log-probabilities and ids of the most
            likely tokens; float64 is exact for all ids.
    """

    def __init__(self, cache: StackCache, *, vocab_size: int, max_len: int, likeliest: int = 0) -> None:
        rows, device = len(cache.lengths), cache.lengths.device
        self.cache = cache
        self.tokens: Int[Tensor, " B"] = torch.zeros(rows, dtype=torch.long, device=device)
        self.uniform: Float[Tensor, "B S"] = torch.zeros(rows, max_len + 1, dtype=torch.float64, device=device)
        self.settings = RowSettings(torch.zeros(rows, RowSettings.COLUMNS, device=device))
        self.seen_mask: Bool[Tensor, "B V"] = torch.zeros(rows, vocab_size, dtype=torch.bool, device=device)
        self.forbidden: Bool[Tensor, " V"] = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.likeliest = likeliest
        self.results: Float[Tensor, "B R"] = torch.zeros(
            rows, N_RESULTS + 2 * likeliest, dtype=torch.float64, device=device
        )

    def view(self, rows: int, capacity: int) -> "DecodeState":
        """Return a view, in the same memory, of the first rows and columns, for `decode_step`."""
        part = self.sampled_rows(slice(rows))
        part.cache = self.cache.view(self.cache.lengths[:rows], capacity)
        return part

    def sampled_rows(self, rows: slice) -> "DecodeState":
        """Return a view of these rows, in the same memory, for `sample`; its cache has no keys and values."""
        part = copy(self)
        part.cache = copy(self.cache)
        part.cache.lengths = self.cache.lengths[rows]
        part.cache.layers = []
        part.tokens, part.uniform = self.tokens[rows], self.uniform[rows]
        part.settings = RowSettings(self.settings.table[rows])
        part.seen_mask, part.results = self.seen_mask[rows], self.results[rows]
        return part

    def widen(self, likeliest: int) -> None:
        """Replace `results` by a wider table with the same content."""
        old, old_likeliest = self.results, self.likeliest
        self.results = old.new_zeros(len(old), N_RESULTS + 2 * likeliest)
        self.results[:, : N_RESULTS + old_likeliest] = old[:, : N_RESULTS + old_likeliest]
        self.results[:, N_RESULTS + likeliest :][:, :old_likeliest] = old[:, N_RESULTS + old_likeliest :]
        self.likeliest = likeliest

    def move_row(self, row: int, to: int, *, columns: int) -> None:
        """Copy a row to another one, except for its results.

        Args:
            row: Index of the row to read.
            to: Index of the row to write.
            columns: Number of tokens in the cache of the row.
        """
        self.cache.write_rows(to, self.cache, row, columns=columns)
        tables = [self.tokens, self.cache.lengths, self.uniform, self.settings.table, self.seen_mask]
        for table in tables:
            table[to] = table[row]

    def changing(self) -> list[Tensor]:
        """Return the tensors that a step changes, except for columns of the cache that are not visible yet."""
        return [self.tokens, self.cache.lengths, self.seen_mask, self.results]


def decode_step(model: SteppingModel, state: DecodeState, filters: Filters) -> None:
    """Append each row's last token to the cache, and sample the next one."""
    sample(model.step(state.tokens, state.cache), state, filters)


def sample(logits: Float[Tensor, "B V"], state: DecodeState, filters: Filters) -> None:
    """Choose a token for each row and write it into the state, without waiting for the device."""
    positions = state.cache.lengths.clamp(max=state.uniform.shape[1] - 1)[:, None]
    ids, diverged = choose_rows(
        logits,
        state.settings,
        filters,
        uniform=state.uniform.gather(1, positions).squeeze(1),
        seen_mask=state.seen_mask,
        forbidden=state.forbidden,
    )
    state.tokens.copy_(ids)
    if filters.penalty:
        state.seen_mask.scatter_(1, ids[:, None], True)
    logprobs = token_logprobs(logits, ids)
    results = [torch.stack((ids.double(), logprobs.double(), diverged.double()), dim=-1)]
    if filters.likeliest:
        results += [x.double() for x in logits.float().log_softmax(-1).topk(filters.likeliest)]
    state.results[:, : N_RESULTS + 2 * filters.likeliest].copy_(torch.cat(results, dim=-1))

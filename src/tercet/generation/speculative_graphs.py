"""A round of speculative decoding on the device, so that it can be captured as one CUDA graph.

    draft (K steps) -> draft tokens -> model reads them -> accept -> tokens, lengths of both caches, results

The formula and the order of the random numbers are those of `speculative.py`. Each row uses its uniform numbers in this
order: one for each token of a draft model, one for each test up to the first rejection, and one for the token at the
rejection or after all draft tokens. A draft token that was looked up uses a single number, for the draw that also tests
it. The host waits once per round, for the results.
"""

import math
import weakref
from collections.abc import Callable, Generator, Sequence, Set
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet.config import UserError
from tercet.generation.decode_graphs import (
    GraphModel,
    ResultReader,
    StepGraphs,
    borrow,
    decode_mode,
    matches_weights,
    round_up_capacity,
    round_up_rows,
)
from tercet.generation.decoding import current_device
from tercet.generation.prefill import prefill
from tercet.generation.protocol import AnyDecoder, device_of
from tercet.generation.row_sampling import UniformNumbers, draw_rows
from tercet.generation.sampling import DIVERGENCE_MESSAGE, distribution, mark_seen
from tercet.generation.specs import Sampling
from tercet.generation.speculative_row import Row
from tercet.nn.cache import StackCache
from tercet.objectives import token_logprobs
from tercet.objectives.batch import to_device

N_ROUND_RESULTS = (
    3  # numbers per row: draft tokens, accepted ones, 1.0 if a model diverged; then ids and log-probabilities
)


class RoundState:
    """Tensors that a round reads and writes; B is the number of rows of the caches.

    Args:
        target: Cache of the model, which holds all tokens of a row but the last.
        draft: Cache of the draft model, or None if draft tokens are looked up.
        draft_tokens: Maximum number of draft tokens per row, K.
        vocab_size: Number of logits, V.

    Attributes:
        last: (B,) last token of each row.
        unread: (B, 2) tokens that the draft model has not read: the last one, or its last draft token and the last one.
        n_unread: (B,) number of these, 1 or 2.
        ids: (B, K) draft tokens; written by the host if they are looked up.
        limit: (B,) maximum number of draft tokens of each row in this round, written by the host.
        uniform: (B, K + 1), or (B, 2K + 1) with a draft model: uniform numbers for this round, written by the host.
        seen_mask: (B, V) bool, True at tokens that the row contains.
        stops: (V,) bool, True at ids that end a row, after which there are no draft tokens.
        forbidden: (V,) bool, True at ids that are never sampled.
        results: (B, N_ROUND_RESULTS + 2 (K + 1)), see `N_ROUND_RESULTS`; float64 is exact for all ids.
    """

    def __init__(self, target: StackCache, draft: StackCache | None, *, draft_tokens: int, vocab_size: int) -> None:
        rows, device = len(target.lengths), target.lengths.device

        def table(*columns: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(rows, *columns, dtype=dtype, device=device)

        self.target, self.draft = target, draft
        self.last, self.n_unread, self.limit = table(), table(), table()
        self.unread, self.ids = table(2), table(draft_tokens)
        self.uniform = table(draft_tokens + 1 if draft is None else 2 * draft_tokens + 1, dtype=torch.float64)
        self.seen_mask = table(vocab_size, dtype=torch.bool)
        self.results = table(N_ROUND_RESULTS + 2 * (draft_tokens + 1), dtype=torch.float64)
        self.stops = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.forbidden = torch.zeros(vocab_size, dtype=torch.bool, device=device)

    def view(self, rows: int, columns: int) -> "RoundState":
        """Return a view, in the same memory, of the first rows and the first columns of their caches."""
        part = copy(self)
        part.target = self.target.view(self.target.lengths[:rows], min(columns, self.target.capacity))
        if self.draft is not None:
            part.draft = self.draft.view(self.draft.lengths[:rows], min(columns, self.draft.capacity))
        for name in ("last", "unread", "n_unread", "ids", "limit", "uniform", "seen_mask", "results"):
            setattr(part, name, getattr(self, name)[:rows])
        return part

    def changing(self) -> list[Tensor]:
        """Return the tensors that a round changes, except for columns of the caches that are not visible yet."""
        lengths = [cache.lengths for cache in (self.target, self.draft) if cache is not None]
        return [self.last, self.unread, self.n_unread, self.ids, self.seen_mask, self.results, *lengths]


def speculative_round(models: Sequence[Any], state: RoundState, sampling: Sampling) -> None:
    """Generate draft tokens, read them, and accept or reject them, without waiting for the device.

    Args:
        models: The model, and the draft model if there is one.
        state: The rows.
        sampling: Settings of all rows.
    """
    K = state.ids.shape[1]
    q, is_draft_empty = (None, None) if state.draft is None else _draft(models[1], state.draft, state, sampling)
    ids = state.ids
    valid = torch.arange(K, device=ids.device) < state.limit[:, None]  # (B, K)
    if q is not None:  # draft tokens end with a stop id
        n_stops = state.stops[ids].cumsum(-1)
        valid &= (n_stops - state.stops[ids].long()) == 0
    n_drafted = valid.sum(-1)  # (B,)
    logits = models[0].read_ahead(torch.cat((state.last[:, None], ids), dim=1), state.target)  # (B, K+1, V)
    p = _probabilities(logits, _seen_masks(state, ids), state, sampling)  # (B, K+1, V)
    if q is None:
        tokens_drawn, is_empty = draw_rows(p, state.uniform)  # (B, K+1)
        n_accepted = (valid & (tokens_drawn[:, :K] == ids)).long().cumprod(-1).sum(-1)
        token, diverged = _at(tokens_drawn, n_accepted), (is_empty & _up_to(n_accepted, is_empty)).any(-1)
    else:
        tests = state.uniform.gather(1, n_drafted[:, None] + torch.arange(K, device=ids.device))
        p_draft, q_draft = (x[:, :K].gather(-1, ids[..., None]).squeeze(-1) for x in (p, q))  # (B, K)
        n_accepted = (valid & (tests * q_draft < p_draft)).long().cumprod(-1).sum(-1)
        rejected = n_accepted < n_drafted
        p_next, q_next = _at(p, n_accepted), _at(q, n_accepted.clamp(max=K - 1))  # (B, V)
        surplus = (p_next - q_next).clamp(min=0)
        differs = rejected & (surplus.sum(-1) != 0)  # if False, they differ only by rounding
        number = state.uniform.gather(1, (n_drafted + n_accepted + rejected)[:, None])
        tokens_drawn, is_empty = draw_rows(torch.where(differs[:, None], surplus, p_next)[:, None], number)
        token, diverged = tokens_drawn[:, 0], is_empty[:, 0]
    if is_draft_empty is not None:
        diverged = diverged | (is_draft_empty & valid).any(-1)
    _advance(state, n_accepted, token)
    places = torch.arange(K + 1, device=ids.device)
    accepted = torch.where(places[:K] < n_accepted[:, None], ids, token[:, None])
    tokens = torch.cat((accepted, token[:, None]), dim=1)  # (B, K+1), repeated at the end
    logprobs = token_logprobs(logits.flatten(0, 1), tokens.flatten()).view_as(tokens)
    facts = torch.stack((n_drafted, n_accepted, diverged.long()), dim=-1)
    state.results.copy_(torch.cat((facts.double(), tokens.double(), logprobs.double()), dim=-1))


def _draft(
    draft: Any, cache: StackCache, state: RoundState, sampling: Sampling
) -> tuple[Float[Tensor, "B K V"], Bool[Tensor, "B K"]]:
    """Write draft tokens into `state.ids`; return their distributions, and True for those that are empty."""
    logits = draft.read_ahead(state.unread, cache)  # (B, 2, V)
    cache.advance(state.n_unread)
    next_logits, seen_mask = _at(logits, state.n_unread - 1), state.seen_mask
    distributions: list[Tensor] = []
    is_empty: list[Tensor] = []
    for place in range(state.ids.shape[1]):
        if place:
            next_logits = draft.step(state.ids[:, place - 1], cache)
            seen_mask = seen_mask.scatter(1, state.ids[:, place - 1 : place], True)
        q = _probabilities(next_logits[:, None], seen_mask[:, None], state, sampling)  # (B, 1, V)
        ids, row_is_empty = draw_rows(q, state.uniform[:, place : place + 1])
        state.ids[:, place] = ids[:, 0]
        distributions.append(q)
        is_empty.append(row_is_empty)
    return torch.cat(distributions, dim=1), torch.cat(is_empty, dim=1)


def _probabilities(
    logits: Float[Tensor, "B T V"], seen_mask: Bool[Tensor, "B T V"], state: RoundState, sampling: Sampling
) -> Float[Tensor, "B T V"]:
    """Return the distribution that `sampling` makes of the logits, in float64."""
    drawable = logits.masked_fill(state.forbidden, -math.inf).flatten(0, 1)
    return distribution(drawable, sampling, seen_mask.flatten(0, 1)).double().view_as(logits)


def _seen_masks(state: RoundState, ids: Int[Tensor, "B K"]) -> Bool[Tensor, "B T V"]:
    """Return masks of the tokens before each position, T = K + 1: those of the row and the previous draft tokens."""
    rows, width = ids.shape[0], state.seen_mask.shape[1]
    counts = torch.zeros(rows, ids.shape[1] + 1, width, dtype=torch.long, device=ids.device)
    counts[:, 1:].scatter_(2, ids[..., None], 1)
    return (counts.cumsum(1) > 0) | state.seen_mask[:, None]


def _at(table: Tensor, place: Int[Tensor, " B"]) -> Tensor:
    """Return the entry of each row of `table` at the row's position."""
    return table[torch.arange(len(place), device=place.device), place]


def _up_to(positions: Int[Tensor, " B"], table: Tensor) -> Bool[Tensor, "B T"]:
    return torch.arange(table.shape[1], device=positions.device) <= positions[:, None]


def _advance(state: RoundState, n_accepted: Int[Tensor, " B"], token: Int[Tensor, " B"]) -> None:
    """Count the accepted draft tokens as read, and store `token` for the next round."""
    K = state.ids.shape[1]
    accepted_ids = torch.where(
        torch.arange(K, device=token.device) < n_accepted[:, None], state.ids, state.last[:, None]
    )
    state.seen_mask.scatter_(1, torch.cat((accepted_ids, token[:, None]), dim=1), True)
    state.target.advance(n_accepted + 1)
    if state.draft is not None:  # it has read all its draft tokens but the last
        state.draft.advance(n_accepted.clamp(max=K - 1) - (K - 1))
        all_accepted = n_accepted == K
        first = torch.where(all_accepted, state.ids[:, K - 1], token)
        state.unread.copy_(torch.stack((first, token), dim=-1))
        state.n_unread.copy_(all_accepted.long() + 1)
    state.last.copy_(token)


class RoundSpace:
    """The state of speculative decoding with one draft model, or none, and its captured graphs.

    Args:
        model: The model.
        draft: The draft model; None if draft tokens are looked up.
        rows: Maximum number of rows.
        capacity: Maximum number of tokens per row.
        draft_tokens: Maximum number of draft tokens per row and round.
    """

    def __init__(
        self, model: GraphModel, draft: GraphModel | None, *, rows: int, capacity: int, draft_tokens: int
    ) -> None:
        caches = [
            None if member is None else member.new_cache(rows, capacity=round_up_capacity(capacity, member.max_len))
            for member in (model, draft)
        ]
        assert caches[0] is not None
        self.rows, self.capacity, self.draft_tokens = rows, caches[0].capacity, draft_tokens
        self.state = RoundState(caches[0], caches[1], draft_tokens=draft_tokens, vocab_size=model.vocab_size)
        self.results = ResultReader(self.state.results)
        self._draft = None if draft is None else weakref.ref(draft)
        self._graphs = StepGraphs(_modules(model, draft), speculative_round, mode=decode_mode())

    def fits(self, model: GraphModel, draft: GraphModel | None, *, rows: int, capacity: int, draft_tokens: int) -> bool:
        """Return whether the state has enough rows and columns, and is for this setup.

        The setup consists of the draft model, the number of draft tokens, and device and dtype of the model's weights.
        """
        own_draft = None if self._draft is None else self._draft()
        is_same_setup = (
            own_draft is draft and (self._draft is None) == (draft is None) and draft_tokens == self.draft_tokens
        )
        return (
            is_same_setup
            and rows <= self.rows
            and capacity <= self.capacity
            and matches_weights(self.state.target, model)
        )

    def run(self, model: GraphModel, draft: GraphModel | None, rows: int, columns: int, sampling: Sampling) -> None:
        """Run a round with at least the first `rows` rows and at least `columns` columns."""
        rows, columns = min(round_up_rows(rows), self.rows), round_up_capacity(columns, model.max_len)
        settings = replace(sampling, max_new_tokens=1, seed=0, stop=())

        def state() -> tuple[Sequence[Any], Sequence[Tensor]]:
            view = self.state.view(rows, columns)
            return (view, settings), view.changing()

        self._graphs.run(_modules(model, draft), (rows, columns, settings), state)


def _modules(model: GraphModel, draft: GraphModel | None) -> nn.ModuleList:
    return nn.ModuleList([cast("nn.Module", member) for member in (model, draft) if member is not None])


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The models and settings of all rounds of a batch."""

    model: GraphModel
    draft: GraphModel | None
    sampling: Sampling
    stop_ids: Set[int]
    forbidden: Set[int]
    draft_tokens: int
    look_up: Callable[[Sequence[Row], Sequence[int]], list[list[int]]] | None  # draft tokens of rows, without a draft


class GraphRounds:
    """Rounds of speculative decoding with one CUDA graph per round.

    Args:
        rounds: The models and settings.
        space: State that is large enough for the batch.
    """

    def __init__(self, rounds: Rounds, space: RoundSpace) -> None:
        self._rounds, self._space = rounds, space
        self._device = space.state.last.device
        self._numbers: dict[int, UniformNumbers] = {}
        self._starts: dict[int, tuple[int, ...]] = {}  # start of each row's window in both models
        self._slots: dict[int, int] = {}
        for table, ids in ((space.state.stops, rounds.stop_ids), (space.state.forbidden, rounds.forbidden)):
            table.zero_()
            table[torch.tensor(sorted(ids), dtype=torch.long, device=self._device)] = True

    def run(self, rows: Sequence[Row], limits: Sequence[int]) -> list[tuple[list[int], list[float]]]:
        """Run a round; return the new tokens of each row and their log-probabilities. Waits for the device once.

        Args:
            rows: Live rows.
            limits: Maximum number of draft tokens of each row.

        Raises:
            UserError: If a model diverged.
        """
        space, draft_tokens, look_up = self._space, self._rounds.draft_tokens, self._rounds.look_up
        ids = None if look_up is None else look_up(rows, limits)
        with current_device(self._device):
            starts = {row.number: row.starts(self._models()) for row in rows}
            if any(self._starts.get(number) != start for number, start in starts.items()):
                self._read(rows, starts)
            self._write(rows, limits if ids is None else list(map(len, ids)), ids)
            columns = max(len(row.ids) - min(starts[row.number]) for row in rows) + draft_tokens
            space.run(self._rounds.model, self._rounds.draft, len(self._slots), columns, self._rounds.sampling)
            space.results.copy(space.state.results[: len(self._slots)])
            results = space.results.read()
        answers = list[tuple[list[int], list[float]]]()
        for row in rows:
            n_drafted, n_accepted, diverged, *rest = results[self._slots[row.number]]
            if diverged:
                raise UserError(DIVERGENCE_MESSAGE)
            n_numbers = 0 if self._rounds.draft is None else n_drafted + (n_accepted < n_drafted)
            self._numbers[row.number].skip(int(n_numbers + n_accepted) + 1)
            count = int(n_accepted) + 1
            logprobs = rest[draft_tokens + 1 :]
            answers.append(([int(token) for token in rest[:count]], logprobs[:count]))
        return answers

    def _models(self) -> list[GraphModel]:
        return [model for model in (self._rounds.model, self._rounds.draft) if model is not None]

    def _read(self, rows: Sequence[Row], starts: dict[int, tuple[int, ...]]) -> None:
        """Prefill the visible tokens of all rows; the last token is read again in the next round."""
        state = self._space.state
        self._starts, self._slots = starts, {row.number: slot for slot, row in enumerate(rows)}
        for place, (model, cache) in enumerate(zip(self._models(), (state.target, state.draft), strict=False)):
            assert cache is not None
            visible = [row.ids[starts[row.number][place] :] for row in rows]
            columns = max(map(len, visible))
            _, read = prefill(cast("AnyDecoder[Any]", model), visible, capacity=columns, device=self._device)
            cache.write_rows(0, read, 0, rows=len(rows), columns=columns)
            cache.lengths[: len(rows)] = read.lengths - 1
        last = to_device(torch.tensor([row.ids[-1] for row in rows]), self._device)
        state.last[: len(rows)], state.unread[: len(rows)] = last, last[:, None]
        state.n_unread[: len(rows)] = 1
        if self._rounds.sampling.repetition_penalty != 1:
            state.seen_mask[: len(rows)] = mark_seen((row.ids for row in rows), state.seen_mask[: len(rows)])

    def _write(self, rows: Sequence[Row], limits: Sequence[int], ids: Sequence[Sequence[int]] | None) -> None:
        """Copy the inputs of a round to the device; rows that have ended get a limit of 0 draft tokens."""
        state, count = self._space.state, len(self._slots)
        limit = torch.zeros(count, dtype=torch.long)
        uniform = torch.zeros(count, state.uniform.shape[1], dtype=torch.float64)
        draft_ids = torch.zeros(count, state.ids.shape[1], dtype=torch.long)
        for number, (row, n_limit) in enumerate(zip(rows, limits, strict=True)):
            slot = self._slots[row.number]
            numbers = self._numbers.setdefault(row.number, UniformNumbers(row.generator))
            uniform[slot], limit[slot] = numbers.peek(uniform.shape[1]), n_limit
            if ids is not None:
                draft_ids[slot, :n_limit] = torch.tensor(ids[number], dtype=torch.long)
        state.limit[:count], state.uniform[:count] = to_device(limit, self._device), to_device(uniform, self._device)
        if ids is not None:
            state.ids[:count] = to_device(draft_ids, self._device)


@contextmanager
def graph_rounds(rounds: Rounds, *, rows: int, capacity: int) -> Generator[GraphRounds]:
    """Provide rounds with CUDA graphs, in an idle space of the model or a new one.

    Args:
        rounds: The models and settings.
        rows: Maximum number of rows.
        capacity: Maximum number of tokens per row.
    """
    model, draft = rounds.model, rounds.draft
    device = device_of(model)
    capacity = min(model.max_len, capacity)
    needs: dict[str, Any] = {"rows": rows, "capacity": capacity, "draft_tokens": rounds.draft_tokens}
    with ExitStack() as stack:
        with torch.inference_mode(), current_device(device):
            space = stack.enter_context(
                borrow(
                    model,
                    RoundSpace,
                    lambda space: space.fits(model, draft, **needs),
                    lambda: RoundSpace(model, draft, **(needs | {"rows": round_up_rows(rows)})),
                )
            )
            graph_decoding = GraphRounds(rounds, space)
        yield graph_decoding

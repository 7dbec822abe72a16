"""A round of speculative decoding that stays on the device, so that it can be captured as one CUDA graph.

    draft (K steps) -> guesses -> model reads them -> accept -> tokens, lengths of both caches, results

Formula and order of the random numbers are those of `speculative.py`. A row that guesses g tokens uses its next uniform
numbers in this order: one for each guess of a draft, one for each test up to the first rejection, one for the token in
its place or after all guesses. A guess that was looked up has one draw, which is its test as well. The host waits once
per round, for the number of accepted tokens.
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
    decode_mode,
    is_beside,
    lend,
    round_up_capacity,
    round_up_rows,
)
from tercet.generation.decoding import current_device
from tercet.generation.prefill import prefill
from tercet.generation.protocol import AnyDecoder, device_of
from tercet.generation.row_sampling import AdvanceNumbers
from tercet.generation.sampling import DIVERGED, distribution, mark_seen
from tercet.generation.specs import Sampling
from tercet.generation.speculative_row import Row
from tercet.nn.cache import StackCache
from tercet.objectives import token_logprobs
from tercet.objectives.batch import to_device

FACTS = 3  # numbers for each row: guesses, accepted guesses, and 1.0 if a model diverged; then ids, log-probabilities


class RoundState:
    """Tensors that a round reads and writes, with a row for each row of the caches.

    Args:
        target: The model's cache, which holds all tokens of a row but the last.
        draft: The draft's cache, or None if guesses are looked up.
        guesses: Most guesses of a row, K.
        vocab_size: Number of logits.

    Attributes:
        last: Last token of each row.
        unread: Tokens that the draft has not read: the last one, or its own last guess and the last one.
        n_unread: Number of these, 1 or 2.
        ids: Guesses; written by the host if they are looked up.
        limit: Most guesses of each row in this round, written by the host.
        uniform: Uniform numbers of each row for this round, written by the host.
        seen: Tokens that each row holds.
        stops: Ids after which a draft guesses nothing.
        forbidden: Ids that no row may draw.
        results: See `FACTS`; float64 holds any id.
    """

    def __init__(self, target: StackCache, draft: StackCache | None, *, guesses: int, vocab_size: int) -> None:
        rows, device = len(target.lengths), target.lengths.device

        def table(*columns: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(rows, *columns, dtype=dtype, device=device)

        self.target, self.draft = target, draft
        self.last, self.n_unread, self.limit = table(), table(), table()
        self.unread, self.ids = table(2), table(guesses)
        self.uniform = table(guesses + 1 if draft is None else 2 * guesses + 1, dtype=torch.float64)
        self.seen = table(vocab_size, dtype=torch.bool)
        self.results = table(FACTS + 2 * (guesses + 1), dtype=torch.float64)
        self.stops = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.forbidden = torch.zeros(vocab_size, dtype=torch.bool, device=device)

    def view(self, rows: int, columns: int) -> "RoundState":
        """Return the first rows with the first columns of their caches, in the same memory."""
        part = copy(self)
        part.target = self.target.view(self.target.lengths[:rows], min(columns, self.target.capacity))
        if self.draft is not None:
            part.draft = self.draft.view(self.draft.lengths[:rows], min(columns, self.draft.capacity))
        for name in ("last", "unread", "n_unread", "ids", "limit", "uniform", "seen", "results"):
            setattr(part, name, getattr(self, name)[:rows])
        return part

    def changing(self) -> list[Tensor]:
        """Return the tensors that a round changes, except for columns of the caches that are not visible yet."""
        lengths = [cache.lengths for cache in (self.target, self.draft) if cache is not None]
        return [self.last, self.unread, self.n_unread, self.ids, self.seen, self.results, *lengths]


def speculative_round(models: Sequence[Any], state: RoundState, sampling: Sampling) -> None:
    """Guess, read the guesses, and accept those that stand; nothing waits for the device.

    Args:
        models: The model, and the draft if there is one.
        state: The rows.
        sampling: Settings of all rows.
    """
    K = state.ids.shape[1]
    q, bad_draft = (None, None) if state.draft is None else _draft(models[1], state.draft, state, sampling)
    ids = state.ids
    valid = torch.arange(K, device=ids.device) < state.limit[:, None]  # (B, K)
    if q is not None:  # a draft ends with a stop id
        ended = state.stops[ids].cumsum(-1)
        valid &= (ended - state.stops[ids].long()) == 0
    n_guesses = valid.sum(-1)  # (B,)
    logits = models[0].read_ahead(torch.cat((state.last[:, None], ids), dim=1), state.target)  # (B, K+1, V)
    p = _probabilities(logits, _seen_at(state, ids), state, sampling)  # (B, K+1, V)
    if q is None:
        drawn, bad = _draw(p, state.uniform)  # (B, K+1)
        n_accepted = (valid & (drawn[:, :K] == ids)).long().cumprod(-1).sum(-1)
        token, diverged = _at(drawn, n_accepted), (bad & _up_to(n_accepted, bad)).any(-1)
    else:
        tests = state.uniform.gather(1, n_guesses[:, None] + torch.arange(K, device=ids.device))
        p_guess, q_guess = (x[:, :K].gather(-1, ids[..., None]).squeeze(-1) for x in (p, q))  # (B, K)
        n_accepted = (valid & (tests * q_guess < p_guess)).long().cumprod(-1).sum(-1)
        rejected = n_accepted < n_guesses
        p_next, q_next = _at(p, n_accepted), _at(q, n_accepted.clamp(max=K - 1))  # (B, V)
        surplus = (p_next - q_next).clamp(min=0)
        differs = rejected & (surplus.sum(-1) != 0)  # else they differ by rounding alone
        number = state.uniform.gather(1, (n_guesses + n_accepted + rejected)[:, None])
        drawn, bad = _draw(torch.where(differs[:, None], surplus, p_next)[:, None], number)
        token, diverged = drawn[:, 0], bad[:, 0]
    if bad_draft is not None:
        diverged = diverged | (bad_draft & valid).any(-1)
    _advance(state, n_accepted, token)
    places = torch.arange(K + 1, device=ids.device)
    accepted = torch.where(places[:K] < n_accepted[:, None], ids, token[:, None])
    tokens = torch.cat((accepted, token[:, None]), dim=1)  # (B, K+1), repeated at the end
    logprobs = token_logprobs(logits.flatten(0, 1), tokens.flatten()).view_as(tokens)
    facts = torch.stack((n_guesses, n_accepted, diverged.long()), dim=-1)
    state.results.copy_(torch.cat((facts.double(), tokens.double(), logprobs.double()), dim=-1))


def _draft(
    draft: Any, cache: StackCache, state: RoundState, sampling: Sampling
) -> tuple[Float[Tensor, "B K V"], Bool[Tensor, "B K"]]:
    """Write guesses into `state.ids`; return the distributions they were drawn from, and which had nothing to draw."""
    logits = draft.read_ahead(state.unread, cache)  # (B, 2, V)
    cache.advance(state.n_unread)
    after, seen = _at(logits, state.n_unread - 1), state.seen
    distributions: list[Tensor] = []
    bad: list[Tensor] = []
    for place in range(state.ids.shape[1]):
        if place:
            after = draft.step(state.ids[:, place - 1], cache)
            seen = seen.scatter(1, state.ids[:, place - 1 : place], True)
        q = _probabilities(after[:, None], seen[:, None], state, sampling)  # (B, 1, V)
        ids, wrong = _draw(q, state.uniform[:, place : place + 1])
        state.ids[:, place] = ids[:, 0]
        distributions.append(q)
        bad.append(wrong)
    return torch.cat(distributions, dim=1), torch.cat(bad, dim=1)


def _probabilities(
    logits: Float[Tensor, "B T V"], seen: Bool[Tensor, "B T V"], state: RoundState, sampling: Sampling
) -> Float[Tensor, "B T V"]:
    """Return what `sampling` makes of the logits, in float64."""
    drawable = logits.masked_fill(state.forbidden, -math.inf).flatten(0, 1)
    return distribution(drawable, sampling, seen.flatten(0, 1)).double().view_as(logits)


def _seen_at(state: RoundState, ids: Int[Tensor, "B K"]) -> Bool[Tensor, "B T V"]:
    """Return the tokens that a row holds at each place: its own, and the guesses before."""
    rows, width = ids.shape[0], state.seen.shape[1]
    guessed = torch.zeros(rows, ids.shape[1] + 1, width, dtype=torch.long, device=ids.device)
    guessed[:, 1:].scatter_(2, ids[..., None], 1)
    return (guessed.cumsum(1) > 0) | state.seen[:, None]


def _draw(p: Float[Tensor, "B T V"], uniform: Float[Tensor, "B T"]) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Return a token for each distribution, as `sampling.draw` does, and where there is nothing to draw from."""
    sums = p.cumsum(-1)
    total = sums[..., -1:]
    ids = torch.searchsorted(sums, uniform[..., None] * total, right=True).squeeze(-1)
    return ids.clamp(max=p.shape[-1] - 1), ~(total > 0).squeeze(-1)


def _at(table: Tensor, place: Int[Tensor, " B"]) -> Tensor:
    """Return each row's entry at its place."""
    return table[torch.arange(len(place), device=place.device), place]


def _up_to(place: Int[Tensor, " B"], like: Tensor) -> Bool[Tensor, "B T"]:
    return torch.arange(like.shape[1], device=place.device) <= place[:, None]


def _advance(state: RoundState, n_accepted: Int[Tensor, " B"], token: Int[Tensor, " B"]) -> None:
    """Count accepted guesses as read, and `token` as the last one, which is still to be read."""
    K = state.ids.shape[1]
    kept = torch.where(torch.arange(K, device=token.device) < n_accepted[:, None], state.ids, state.last[:, None])
    state.seen.scatter_(1, torch.cat((kept, token[:, None]), dim=1), True)
    state.target.advance(n_accepted + 1)
    if state.draft is not None:  # it has read all of its guesses but the last
        state.draft.advance(n_accepted.clamp(max=K - 1) - (K - 1))
        all_accepted = n_accepted == K
        first = torch.where(all_accepted, state.ids[:, K - 1], token)
        state.unread.copy_(torch.stack((first, token), dim=-1))
        state.n_unread.copy_(all_accepted.long() + 1)
    state.last.copy_(token)


class RoundSpace:
    """The state of speculative decoding with one draft, or none, and its graphs.

    Args:
        model: The model.
        draft: The draft, or None.
        rows: Most rows.
        capacity: Most tokens per row.
        guesses: Most guesses of a row.
    """

    def __init__(self, model: GraphModel, draft: GraphModel | None, *, rows: int, capacity: int, guesses: int) -> None:
        caches = [
            None if one is None else one.new_cache(rows, capacity=round_up_capacity(capacity, one.max_len))
            for one in (model, draft)
        ]
        assert caches[0] is not None
        self.rows, self.capacity, self.guesses = rows, caches[0].capacity, guesses
        self.state = RoundState(caches[0], caches[1], guesses=guesses, vocab_size=model.vocab_size)
        self.results = ResultReader(self.state.results)
        self._draft = None if draft is None else weakref.ref(draft)
        self._graphs = StepGraphs(_modules(model, draft), speculative_round, mode=decode_mode())

    def fits(self, model: GraphModel, draft: GraphModel | None, *, rows: int, capacity: int, guesses: int) -> bool:
        """Return whether the tables are large enough and were made for this draft."""
        known = None if self._draft is None else self._draft()
        same = known is draft and (self._draft is None) == (draft is None) and guesses == self.guesses
        return same and rows <= self.rows and capacity <= self.capacity and is_beside(self.state.target, model)

    def run(self, model: GraphModel, draft: GraphModel | None, rows: int, columns: int, sampling: Sampling) -> None:
        """Run a round of at least the first `rows` rows, at least `columns` columns wide."""
        rows, columns = min(round_up_rows(rows), self.rows), round_up_capacity(columns, model.max_len)
        settings = replace(sampling, max_new_tokens=1, seed=0, stop=())

        def state() -> tuple[Sequence[Any], Sequence[Tensor]]:
            view = self.state.view(rows, columns)
            return (view, settings), view.changing()

        self._graphs.run(_modules(model, draft), (rows, columns, settings), state)


def _modules(model: GraphModel, draft: GraphModel | None) -> nn.ModuleList:
    return nn.ModuleList([cast("nn.Module", one) for one in (model, draft) if one is not None])


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The settings of all rounds of a batch."""

    model: GraphModel
    draft: GraphModel | None
    sampling: Sampling
    stop_ids: Set[int]
    forbidden: Set[int]
    guesses: int
    look_up: Callable[[Sequence[Row], Sequence[int]], list[list[int]]] | None  # without a draft


class GraphRounds:
    """A graph for each round of guesses and their verification.

    Args:
        rounds: The settings.
        space: Tables that are large enough.
    """

    def __init__(self, rounds: Rounds, space: RoundSpace) -> None:
        self._rounds, self._space = rounds, space
        self._device = space.state.last.device
        self._numbers: dict[int, AdvanceNumbers] = {}
        self._starts: dict[int, tuple[int, ...]] = {}  # where each row's windows begin, in both models
        self._slots: dict[int, int] = {}
        for table, ids in ((space.state.stops, rounds.stop_ids), (space.state.forbidden, rounds.forbidden)):
            table.zero_()
            table[torch.tensor(sorted(ids), dtype=torch.long, device=self._device)] = True

    def run(self, rows: Sequence[Row], limits: Sequence[int]) -> list[tuple[list[int], list[float]]]:
        """Return the tokens of a round for each row, with their log-probabilities; waits once.

        Args:
            rows: The rows that go on.
            limits: Most guesses of each.

        Raises:
            UserError: If a model diverged.
        """
        space, guesses, look_up = self._space, self._rounds.guesses, self._rounds.look_up
        ids = None if look_up is None else look_up(rows, limits)
        with current_device(self._device):
            starts = {row.number: row.starts(self._models()) for row in rows}
            if any(self._starts.get(number) != start for number, start in starts.items()):
                self._read(rows, starts)
            self._write(rows, limits if ids is None else list(map(len, ids)), ids)
            columns = max(len(row.ids) - min(starts[row.number]) for row in rows) + guesses
            space.run(self._rounds.model, self._rounds.draft, len(self._slots), columns, self._rounds.sampling)
            space.results.copy(space.state.results[: len(self._slots)])
            results = space.results.read()
        answers = list[tuple[list[int], list[float]]]()
        for row in rows:
            n_guesses, n_accepted, diverged, *rest = results[self._slots[row.number]]
            if diverged:
                raise UserError(DIVERGED)
            drafted = 0 if self._rounds.draft is None else n_guesses + (n_accepted < n_guesses)
            self._numbers[row.number].skip(int(drafted + n_accepted) + 1)
            count = int(n_accepted) + 1
            logprobs = rest[guesses + 1 :]
            answers.append(([int(token) for token in rest[:count]], logprobs[:count]))
        return answers

    def _models(self) -> list[GraphModel]:
        return [model for model in (self._rounds.model, self._rounds.draft) if model is not None]

    def _read(self, rows: Sequence[Row], starts: dict[int, tuple[int, ...]]) -> None:
        """Read the visible tokens of all rows, of which the last is to be read again by the next round."""
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
            state.seen[: len(rows)] = mark_seen((row.ids for row in rows), state.seen[: len(rows)])

    def _write(self, rows: Sequence[Row], limits: Sequence[int], ids: Sequence[Sequence[int]] | None) -> None:
        """Write what a round reads from the host; a row that has ended guesses nothing."""
        state, count = self._space.state, len(self._slots)
        limit = torch.zeros(count, dtype=torch.long)
        uniform = torch.zeros(count, state.uniform.shape[1], dtype=torch.float64)
        guessed = torch.zeros(count, state.ids.shape[1], dtype=torch.long)
        for number, (row, most) in enumerate(zip(rows, limits, strict=True)):
            slot = self._slots[row.number]
            numbers = self._numbers.setdefault(row.number, AdvanceNumbers(row.generator))
            uniform[slot], limit[slot] = numbers.ahead(uniform.shape[1]), most
            if ids is not None:
                guessed[slot, :most] = torch.tensor(ids[number], dtype=torch.long)
        state.limit[:count], state.uniform[:count] = to_device(limit, self._device), to_device(uniform, self._device)
        if ids is not None:
            state.ids[:count] = to_device(guessed, self._device)


@contextmanager
def graph_rounds(rounds: Rounds, *, rows: int, capacity: int) -> Generator[GraphRounds]:
    """Lend tables of the model for rounds of these settings.

    Args:
        rounds: The settings.
        rows: Most rows.
        capacity: Most tokens per row.
    """
    model, draft = rounds.model, rounds.draft
    device = device_of(model)
    capacity = min(model.max_len, capacity)
    needs: dict[str, Any] = {"rows": rows, "capacity": capacity, "guesses": rounds.guesses}
    with ExitStack() as lent:
        with torch.inference_mode(), current_device(device):
            space = lent.enter_context(
                lend(
                    model,
                    RoundSpace,
                    lambda space: space.fits(model, draft, **needs),
                    lambda: RoundSpace(model, draft, **(needs | {"rows": round_up_rows(rows)})),
                )
            )
            made = GraphRounds(rounds, space)
        yield made

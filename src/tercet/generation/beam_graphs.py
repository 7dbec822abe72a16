"""A step of a beam search as one CUDA graph: decode step, selection of the hypotheses, reordering of the cache.

The device selects the hypotheses to continue, so the next step is launched before the host has read the candidates of
the last one. The host makes the same selection and finds finished sentences one step late. Their further candidates are
ignored.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tercet.config import UserError
from tercet.generation.beam_decoding import BeamBatch, BeamDecoding, Candidates, StepBeams, best_allowed
from tercet.generation.decode_graphs import (
    DecodeMode,
    GraphModel,
    ResultReader,
    StepGraphs,
    borrow,
    decode_mode,
    matches_weights,
    round_up_capacity,
    round_up_rows,
)
from tercet.generation.decode_state import SteppingModel
from tercet.generation.decoding import current_device
from tercet.generation.prefill import prefill
from tercet.generation.protocol import AnyDecoder, CacheType, device_of
from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.nn.cache import StackCache

MIN_COLUMNS = 32  # of the narrowest graph; few, since translations are short and a step reorders all columns


class BeamState:
    """Tensors that a step of a beam search reads and writes.

    Args:
        cache: The KV cache of the hypotheses, `size` rows for each sentence.
        size: Number of hypotheses per sentence.
        forbidden: Ids that are never generated.
        eos_id: Id that ends a hypothesis.

    Attributes:
        tokens: Last token of each hypothesis, which is not in the cache yet.
        alive: Log-probability of each hypothesis, -inf for a missing one.
        early: Number of tokens that the hypotheses of each sentence must still generate before their end token.
        results: (N, 3, count) log-probabilities, parents and tokens of each sentence's candidates, in float64.
    """

    def __init__(self, cache: StackCache, *, size: int, forbidden: Tensor, eos_id: int) -> None:
        rows, device = len(cache.lengths), cache.lengths.device
        self.cache, self.size, self.forbidden, self.eos_id = cache, size, forbidden, eos_id
        self.count = 1 if size == 1 else 2 * size
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.alive = torch.zeros(rows // size, size, device=device)
        self.early = torch.zeros(rows // size, dtype=torch.long, device=device)
        self.results = torch.zeros(rows // size, 3, self.count, dtype=torch.float64, device=device)

    def view(self, sentences: int, capacity: int) -> "BeamState":
        """Return a view, in the same memory, of the first sentences and the first columns of their cache."""
        part, rows = copy(self), sentences * self.size
        part.cache = self.cache.view(self.cache.lengths[:rows], capacity)
        part.tokens, part.alive = self.tokens[:rows], self.alive[:sentences]
        part.early, part.results = self.early[:sentences], self.results[:sentences]
        return part

    def changing(self) -> list[Tensor]:
        """Return the tensors that a step changes."""
        tables = [table for layer in self.cache.layers for table in (layer.self_kv.keys, layer.self_kv.values)]
        return [self.tokens, self.alive, self.early, self.results, self.cache.lengths, *tables]


def beam_step(model: SteppingModel, state: BeamState) -> None:
    """Append the last token of each hypothesis to the cache, and select the hypotheses to continue."""
    parents = extend(model.step(state.tokens, state.cache), state.alive, state)
    first = torch.arange(0, len(state.tokens), state.size, device=parents.device)[:, None]
    state.cache.reorder_in_place((first + parents).flatten())


def extend(logits: Float[Tensor, "R V"], alive: Float[Tensor, "N H"], state: BeamState) -> Tensor:
    """Write the candidates and the selected hypotheses into the state; return the parents of the latter, (N, size)."""
    values, parents, tokens = best_allowed(
        logits, alive, state.count, forbidden=state.forbidden, eos_id=state.eos_id, is_early=state.early > 0
    )
    state.results.copy_(torch.stack((values.double(), parents.double(), tokens.double()), dim=1))
    ends = tokens == state.eos_id
    continuing = ends.long().argsort(dim=-1, stable=True)[:, : state.size]  # the first `size` that do not end
    state.alive.copy_(values.masked_fill(ends, -torch.inf).gather(1, continuing))
    state.tokens.copy_(tokens.gather(1, continuing).flatten())
    state.early -= 1
    return parents.gather(1, continuing)


class BeamSpace:
    """The state of a beam search and its captured graphs.

    Args:
        model: A model whose decode step can be captured.
        sentences: Maximum number of sentences.
        capacity: Maximum number of tokens per row of the cache: a prefix and its hypothesis without the last token.
        sources: Maximum number of tokens of a source; 0 without sources.
        size: Number of hypotheses per sentence.
        forbidden: Ids that are never generated.
        eos_id: Id that ends a hypothesis.
        mode: "graph" or "compiled", as in `StepGraphs`.
    """

    def __init__(
        self,
        model: GraphModel,
        *,
        sentences: int,
        capacity: int,
        sources: int,
        size: int,
        forbidden: Sequence[int],
        eos_id: int,
        mode: DecodeMode = "graph",
    ) -> None:
        self.sentences, self.sources, self.search = sentences, sources, (size, tuple(forbidden), eos_id)
        cache = model.new_cache(sentences * size, capacity=capacity)
        cache.rows_per_source = size
        if sources:
            cache.allocate_sources(sources)
        forbidden_ids = torch.tensor(list(forbidden), dtype=torch.long, device=cache.lengths.device)
        self.state = BeamState(cache, size=size, forbidden=forbidden_ids, eos_id=eos_id)
        self.results = ResultReader(self.state.results)
        self._graphs = StepGraphs(model, beam_step, mode=mode)

    def fits(self, model: GraphModel, batch: BeamBatch, sources: int) -> bool:
        """Return whether the state is large enough for the batch and has its settings."""
        return (
            len(batch.prefixes) <= self.sentences
            and batch.columns <= self.state.cache.capacity
            and sources <= self.sources
            and bool(sources) == bool(self.sources)
            and (batch.size, tuple(sorted(batch.forbidden)), batch.eos_id) == self.search
            and matches_weights(self.state.cache, model)
        )

    def step(self, model: GraphModel, sentences: int, capacity: int) -> None:
        """Run a step with at least the first `sentences` sentences and at least `capacity` columns."""
        sentences = min(round_up_rows(sentences), self.sentences)
        wide = round_up_capacity(capacity, model.max_len, min_columns=MIN_COLUMNS)
        wide = min(wide, self.state.cache.capacity)

        def state() -> tuple[Sequence[Any], Sequence[Tensor]]:
            view = self.state.view(sentences, wide)
            return (view,), view.changing()

        self._graphs.run(model, (sentences, wide), state)


class GraphBeams:
    """Beam search with one CUDA graph per step; its candidates are read while the next one runs.

    Args:
        model: A model whose decode step can be captured.
        batch: The sentences.
        space: State that is large enough for the batch.
    """

    def __init__(self, model: GraphModel, batch: BeamBatch, space: BeamSpace) -> None:
        self._model, self._batch, self._space = model, batch, space
        self._n = len(batch.prefixes)
        self._live = list(range(self._n))  # index in the state of each live sentence
        self._columns = max(map(len, batch.prefixes))
        self._launches = max(batch.limits) - 1  # remaining launches
        state = space.state
        logits, cache = prefill(
            cast("AnyDecoder[Any]", model), batch.prefixes, sources=batch.sources, source_pad=batch.source_pad,
            capacity=self._columns, device=state.tokens.device,
        )  # fmt: skip
        if batch.size > 1:
            cache.expand_beams(batch.size)
        rows = self._n * batch.size
        state.cache.write_rows(0, cache, 0, rows=rows, columns=self._columns)
        state.cache.lengths[:rows] = cache.lengths
        state.early[: self._n] = torch.tensor(batch.shortest, device=state.early.device)
        first = state.view(self._n, state.cache.capacity)
        extend(logits, torch.zeros(self._n, 1, device=logits.device), first)
        space.results.copy(first.results)

    def candidates(self) -> Candidates:
        with current_device(self._space.state.tokens.device):
            if self._launches:
                self._launches, self._columns = self._launches - 1, self._columns + 1
                self._space.step(self._model, self._n, self._columns)
                self._space.results.copy(self._space.state.results[: self._n])
            candidates = np.array(self._space.results.read())[self._live]  # (N, 3, count)
        if np.isnan(candidates[:, 0]).any():
            raise UserError(DIVERGENCE_MESSAGE)
        return candidates[:, 0].astype(np.float32), candidates[:, 1].astype(np.int64), candidates[:, 2].astype(np.int64)

    def advance(self, live: Sequence[int], values: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> None:
        """Store which sentences are live; the device has already continued the hypotheses of all sentences."""
        self._live = [self._live[slot] for slot in live]


@contextmanager
def beams_of(model: AnyDecoder[CacheType], batch: BeamBatch, *, use_graphs: bool) -> Generator[BeamDecoding]:
    """Prefill the prefixes and provide their candidates: with CUDA graphs if `use_graphs`, else step by step."""
    if not use_graphs:
        yield StepBeams(model, batch)
        return
    graph_model = cast("GraphModel", model)
    sources = 0 if batch.sources is None else max(map(len, batch.sources))

    def make() -> BeamSpace:
        return BeamSpace(
            graph_model,
            sentences=round_up_rows(len(batch.prefixes)),
            capacity=round_up_capacity(batch.columns, graph_model.max_len, min_columns=MIN_COLUMNS),
            sources=sources and round_up_rows(sources),
            size=batch.size,
            forbidden=sorted(batch.forbidden),
            eos_id=batch.eos_id,
            mode=decode_mode(),
        )

    with (
        current_device(device_of(model)),
        borrow(graph_model, BeamSpace, lambda space: space.fits(graph_model, batch, sources), make) as space,
    ):
        yield GraphBeams(graph_model, batch, space)

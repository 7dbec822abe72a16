"""The two implementations of decoding for `stream`: step by step, or with CUDA graphs.

    read live rows  ->  sample a token for each  ->  keep some of them  ->  sample ...

`StepDecoding` works with any decoder: it calls the model once per step and draws the tokens on the host.
`GraphDecoding` keeps all state on the device: the next step is launched before the host has read the results of the
last one.
"""

import math
from collections.abc import Generator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, cast

import torch
from torch import Tensor

from tercet.config import UserError
from tercet.generation.decode_graphs import GraphModel, Workspace, can_capture, workspace
from tercet.generation.decode_state import N_RESULTS, sample
from tercet.generation.grammar import GrammarState, mask_logits
from tercet.generation.prefill import prefill
from tercet.generation.protocol import AnyDecoder, CacheType, device_of
from tercet.generation.row_sampling import Filters, RowSettings, UniformNumbers
from tercet.generation.sampling import DIVERGENCE_MESSAGE, choose, mark_seen
from tercet.generation.specs import Sampling
from tercet.objectives import token_logprobs

TokenColumn = tuple[list[int], list[float]]  # ids of all rows, and their log-probabilities


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of a stream and the settings of their continuation.

    Attributes:
        rows: Token ids of each row; the sampled tokens are appended to them.
        sources: Source ids of each row, for a `SourceDecoder`.
        source_pad: Any id of the source vocabulary, for padding.
        sampling: Sampling settings of all rows.
        forbidden: Ids that are never sampled.
        seeds: Seed of each row.
        grammars: Grammar of each row, or None. The caller adds the sampled tokens.
    """

    rows: list[list[int]]
    sources: Sequence[Sequence[int]] | None
    source_pad: int
    sampling: Sampling
    forbidden: Set[int]
    seeds: Sequence[int]
    grammars: Sequence[GrammarState] | None = None


class BatchDecoding(Protocol):
    """The decoding state of a batch.

    All methods are called in inference mode, with the model in eval mode.
    """

    def read(self, live: Sequence[int], visible: Sequence[Sequence[int]], *, capacity: int) -> None:
        """Prefill some rows of the batch; they are the only ones that are continued.

        Args:
            live: Indices of the rows.
            visible: Tokens of these rows that the model sees.
            capacity: Maximum number of tokens per row in the cache.
        """
        ...

    def sample(self, *, launch_next: bool) -> TokenColumn:
        """Sample the next token of each live row.

        Args:
            launch_next: If True, the next step may be started already: the caller will sample again without a prefill,
                unless all rows end.

        Raises:
            UserError: If the model diverged.
        """
        ...

    def keep(self, slots: Sequence[int]) -> None:
        """Continue only some of the live rows, given by their positions in the last results."""
        ...


class StepDecoding(Generic[CacheType]):
    """Decoding with one call of the model per step; the tokens are drawn on the host.

    Args:
        model: Any decoder.
        batch: The rows.
    """

    def __init__(self, model: AnyDecoder[CacheType], batch: Batch) -> None:
        self._model, self._batch, self._device = model, batch, device_of(model)
        self._generators = [torch.Generator().manual_seed(seed) for seed in batch.seeds]
        self._forbidden = torch.tensor(sorted(batch.forbidden), dtype=torch.long, device=self._device)
        self._live: list[int] = []
        self._logits: Tensor | None = None  # of the last prefill, until tokens are drawn from them
        self._cache: CacheType | None = None

    def read(self, live: Sequence[int], visible: Sequence[Sequence[int]], *, capacity: int) -> None:
        self._live = list(live)
        self._logits, self._cache = prefill(
            self._model, visible, sources=_sources_of(self._batch.sources, live), source_pad=self._batch.source_pad,
            capacity=capacity, device=self._device,
        )  # fmt: skip

    def sample(self, *, launch_next: bool) -> TokenColumn:
        rows = [self._batch.rows[row] for row in self._live]
        logits = self._logits
        if logits is None:
            assert self._cache is not None
            logits = self._model.step(torch.tensor([row[-1] for row in rows], device=self._device), self._cache)
        drawable = logits.index_fill(-1, self._forbidden, -math.inf) if self._batch.forbidden else logits
        if self._batch.grammars is not None:
            drawable = mask_logits(drawable, [self._batch.grammars[row] for row in self._live])
        ids = choose(drawable, rows, self._batch.sampling, [self._generators[row] for row in self._live])
        self._logits = None
        return ids.tolist(), token_logprobs(logits, ids).tolist()

    def keep(self, slots: Sequence[int]) -> None:
        if len(slots) < len(self._live):
            assert self._cache is not None
            self._live = [self._live[slot] for slot in slots]
            self._cache.reorder(torch.tensor(slots, device=self._device))


class GraphDecoding:
    """Decoding with one CUDA graph per step; the results of a step are read while the next one runs.

    Args:
        model: A model whose decode step can be captured.
        batch: The rows.
        space: Workspace that is large enough for the rows.
    """

    def __init__(self, model: GraphModel, batch: Batch, space: Workspace) -> None:
        self._model, self._batch, self._space = model, batch, space
        self._filters = Filters.of([batch.sampling], model.vocab_size, forbids=bool(batch.forbidden))
        self._numbers = [UniformNumbers(torch.Generator().manual_seed(seed)) for seed in batch.seeds]
        self._live: list[int] = []
        self._slots: list[int] = []  # table row of each live row
        self._rows = self._columns = 0  # number of rows in the tables, and of tokens in the longest
        self._n_sampled = 0  # tokens sampled for each row since the last prefill
        state = space.state
        state.forbidden.zero_()
        state.forbidden[torch.tensor(sorted(batch.forbidden), dtype=torch.long, device=space.device)] = True

    def read(self, live: Sequence[int], visible: Sequence[Sequence[int]], *, capacity: int) -> None:
        for row in self._live:
            self._numbers[row].skip(self._n_sampled)
        self._live, self._slots, self._n_sampled = list(live), list(range(len(live))), 0
        self._rows, self._columns = len(live), max(map(len, visible))
        self._space.results.drop()
        with current_device(self._space.device):
            logits, cache = prefill(
                cast("AnyDecoder[Any]", self._model), visible, sources=_sources_of(self._batch.sources, live),
                source_pad=self._batch.source_pad, capacity=self._columns, device=self._space.device,
            )  # fmt: skip
            state = self._space.state
            state.cache.write_rows(0, cache, 0, rows=self._rows, columns=self._columns)
            state.cache.lengths[: self._rows] = cache.lengths
            self._write_settings(visible, capacity)
            first = state.sampled_rows(slice(self._rows))
            sample(logits, first, self._filters)
            self._space.results.copy(first.results)

    def sample(self, *, launch_next: bool) -> TokenColumn:
        with current_device(self._space.device):
            if not self._space.results.pending:
                self._launch()
            if launch_next:
                self._launch()
            results = self._space.results.read()
        self._n_sampled += 1
        row_results = [results[slot][:N_RESULTS] for slot in self._slots]
        if any(diverged for _, _, diverged in row_results):
            raise UserError(DIVERGENCE_MESSAGE)
        return [int(token) for token, _, _ in row_results], [logprob for _, logprob, _ in row_results]

    def keep(self, slots: Sequence[int]) -> None:
        self._live, self._slots = [self._live[slot] for slot in slots], [self._slots[slot] for slot in slots]

    def _launch(self) -> None:
        self._columns += 1
        self._space.step(self._model, self._rows, self._columns, self._filters)
        self._space.results.copy(self._space.state.results[: self._rows])

    def _write_settings(self, visible: Sequence[Sequence[int]], capacity: int) -> None:
        """Write the inputs of the next draws other than the logits: settings, seen tokens and uniform numbers."""
        state, rows = self._space.state, self._rows
        settings = RowSettings.encode([self._batch.sampling], self._model.vocab_size)
        state.settings.table[:rows] = settings.to(self._space.device)
        if self._filters.penalty:
            state.seen_mask[:rows] = mark_seen((self._batch.rows[row] for row in self._live), state.seen_mask[:rows])
        if self._filters.draws:
            uniform = torch.zeros(rows, state.uniform.shape[1], dtype=torch.float64)
            for slot, (row, tokens) in enumerate(zip(self._live, visible, strict=True)):
                numbers = self._numbers[row].peek(capacity + 1 - len(tokens))
                uniform[slot, len(tokens) : len(tokens) + len(numbers)] = numbers
            state.uniform[:rows] = uniform.to(self._space.device)


@contextmanager
def decoding_of(model: AnyDecoder[CacheType], batch: Batch) -> Generator[BatchDecoding]:
    """Provide the decoding of a batch: with CUDA graphs if its model can be captured, else step by step.

    A batch with grammars is decoded step by step, since the next mask depends on the last token.
    """
    with ExitStack() as stack:
        if batch.grammars is not None or not can_capture(model, device_of(model)):
            yield StepDecoding(model, batch)
            return
        graph_model = cast("GraphModel", model)
        longest = max(map(len, batch.rows)) + batch.sampling.max_new_tokens
        sources = 0 if batch.sources is None else max(map(len, batch.sources))
        with torch.inference_mode(), current_device(device_of(model)):
            space = stack.enter_context(
                workspace(graph_model, rows=len(batch.rows), capacity=min(model.max_len, longest), sources=sources)
            )
            decoding = GraphDecoding(graph_model, batch, space)
        yield decoding


def _sources_of(sources: Sequence[Sequence[int]] | None, live: Sequence[int]) -> list[Sequence[int]] | None:
    return None if sources is None else [sources[row] for row in live]


def current_device(device: torch.device) -> AbstractContextManager[None]:
    """Make a GPU the current device in the context, as graphs, events and streams require; ignore other devices."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

"""CUDA graphs of the decode step, one for each batch size, width and set of filters.

A graph is launched by one call; a step without a graph takes about two hundred. A graph contains the addresses of the
weights, of the tables in `DecodeState` and of intermediate results. The tables are therefore allocated once for the
largest batch, graphs use views of their first rows and columns, and all graphs are dropped if a weight has moved.

On a CPU there are no graphs. The same code then calls the step function directly, so that it can be tested there.
"""

import os
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from typing import Any, Literal, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.config import UserError, suggest
from tercet.generation.decode_state import DecodeState, decode_step
from tercet.generation.row_sampling import Filters
from tercet.models import DecoderOnly, EncoderDecoder
from tercet.models.record import COMPILED_ATTRIBUTE
from tercet.nn.cache import StackCache

DecodeMode = Literal["eager", "graph", "compiled"]
MODE_VARIABLE = "TERCET_DECODE"  # environment variable that sets the mode
MODES: tuple[DecodeMode, ...] = ("eager", "graph", "compiled")

MIN_COLUMNS = 128  # of the narrowest graph, including the spare column; attention kernels prefer multiples of 16
MAX_COMPILED_STEPS = 256  # for all batch sizes, widths and filters together; further steps would not be compiled
MAX_GRAPHS = 64  # per model; clients of a server choose the filters, so the least recently used graph is dropped
WARM_UPS = 2  # steps before the capture: libraries allocate their workspaces, and a compiled step is compiled


class GraphModel(Protocol):
    """A model whose decode step can be captured."""

    @property
    def max_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    def new_cache(self, batch: int, *, capacity: int) -> StackCache: ...
    def step(self, tokens: Int[Tensor, " B"], cache: StackCache, /) -> Float[Tensor, "B V"]: ...


def decode_mode() -> DecodeMode:
    """Return the decoding mode on GPUs: the value of TERCET_DECODE, or "graph" if that is not set.

    Raises:
        UserError: If the value is not "eager", "graph" or "compiled".
    """
    mode = os.environ.get(MODE_VARIABLE) or "graph"
    if mode not in MODES:
        raise UserError(f"unknown {MODE_VARIABLE}={mode}{suggest(mode, MODES)}; choose from {', '.join(MODES)}")
    return mode


def can_capture(model: object, device: torch.device) -> bool:
    """Return whether the model's decode step can be captured as a CUDA graph.

    This requires a `DecoderOnly` or `EncoderDecoder` on a GPU in eval mode, without autocast, and a TERCET_DECODE other
    than "eager". A model in training mode needs the memory for its training. The model must not have hooks, compiled
    modules or active recordings (`models.record`), because these would not run in a graph.
    """
    if device.type != "cuda" or decode_mode() == "eager" or not isinstance(model, DecoderOnly | EncoderDecoder):
        return False
    return not model.training and not torch.is_autocast_enabled("cuda") and not any(map(_is_changed, model.modules()))


def _is_changed(part: nn.Module) -> bool:
    attributes = vars(part)
    return bool(
        attributes["_forward_hooks"]
        or attributes["_forward_pre_hooks"]
        or attributes.get(COMPILED_ATTRIBUTE) is not None
        or "attend" in attributes  # see `models.record`
    )


def round_up_rows(rows: int) -> int:
    """Return the batch size of the smallest graph with at least `rows` rows: the next power of two."""
    return 1 << (rows - 1).bit_length()


def round_up_capacity(capacity: int, max_len: int, *, min_columns: int = MIN_COLUMNS) -> int:
    """Return the capacity of the smallest graph for `capacity` tokens per row: a power of two minus 1, or max_len.

    Args:
        capacity: Number of tokens per row.
        max_len: Context length of the model.
        min_columns: Columns of the narrowest graph, including the spare column.
    """
    return min(max_len, max(min_columns, 1 << capacity.bit_length()) - 1)


class StepGraphs:
    """The captured graphs of one model's steps.

    They hold references to the tensors of the weights, but not to the model.

    Args:
        model: The model, or an `nn.ModuleList` of several.
        step: Function to capture. Its arguments are the model and those of the `state` in `run`; all tensors in them
            must stay at the same addresses.
        mode: "graph" or "compiled", which also compiles the step; no effect on a CPU.
    """

    def __init__(self, model: object, step: Callable[..., None], *, mode: DecodeMode) -> None:
        device = _first_parameter(model).device
        self._step = _compile(step) if mode == "compiled" and device.type == "cuda" else step
        self._graphs: dict[Hashable, Callable[[], None]] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._weights = _Weights(model)

    def run(self, model: object, key: Hashable, state: Callable[[], tuple[Sequence[Any], Sequence[Tensor]]]) -> None:
        """Launch the graph of a step, which is captured at the first call with its key; on a CPU, call the step.

        Args:
            model: The model.
            key: Sizes and operations of the step, which identify its graph.
            state: Function that returns the step's arguments after the model, and the tensors that the step changes;
                called if a graph is captured, and for each step on a CPU.
        """
        if self._pool is None:
            self._step(model, *state()[0])
            return
        if self._weights.have_moved():
            self._graphs.clear()
            self._weights = _Weights(model)
        graph = self._graphs.pop(key, None)
        if graph is None:
            arguments, changing = state()
            graph = capture(partial(self._step, model, *arguments), changing, self._pool)
        self._graphs[key] = graph  # most recently used
        if len(self._graphs) > MAX_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        graph()

    def clear(self) -> None:
        """Drop all graphs. Required if the state moves to other addresses."""
        self._graphs.clear()


class Workspace:
    """The decoding state of one model and the graphs that were captured with it.

    An idle workspace is freed together with its model.

    Args:
        model: The model.
        rows: Maximum number of rows of a batch.
        capacity: Maximum number of tokens per row.
        sources: Maximum number of tokens of a source, for a model with cross-attention; else 0.
        likeliest: Maximum number of most likely tokens that are reported with each sampled token.
        mode: "graph" or "compiled"; no effect on a CPU.
    """

    def __init__(
        self,
        model: GraphModel,
        *,
        rows: int,
        capacity: int,
        sources: int = 0,
        likeliest: int = 0,
        mode: DecodeMode = "graph",
    ) -> None:
        self.rows, self.sources = rows, sources
        self.state = DecodeState(
            model.new_cache(rows, capacity=capacity),
            vocab_size=model.vocab_size,
            max_len=model.max_len,
            likeliest=likeliest,
        )
        if sources:
            self.state.cache.allocate_sources(sources)
        self.results = ResultReader(self.state.results)
        self._graphs = StepGraphs(model, decode_step, mode=mode)

    @property
    def device(self) -> torch.device:
        return self.state.tokens.device

    @property
    def capacity(self) -> int:
        """Maximum number of tokens per row."""
        return self.state.cache.capacity

    @property
    def likeliest(self) -> int:
        """Maximum number of most likely tokens that are reported with each sampled token."""
        return self.state.likeliest

    def widen(self, likeliest: int) -> None:
        """Report up to `likeliest` tokens. `results` becomes a new reader; pending results stay in the old one."""
        self._graphs.clear()
        self.state.widen(likeliest)
        self.results = ResultReader(self.state.results)

    def grow(self, capacity: int) -> None:
        """Make the tables large enough for `capacity` tokens per row; graphs are captured again."""
        self._graphs.clear()
        self.state.cache.grow(capacity)

    def fits(self, model: GraphModel, *, rows: int, capacity: int, sources: int) -> bool:
        """Return whether the tables are large enough and have the device and dtype of the model's weights.

        A workspace with sources does not fit a batch without them, and vice versa.
        """
        is_large = rows <= self.rows and capacity <= self.capacity and sources <= self.sources
        return is_large and matches_weights(self.state.cache, model) and bool(sources) == bool(self.sources)

    def step(self, model: GraphModel, rows: int, capacity: int, filters: Filters) -> None:
        """Run a decode step with at least the first `rows` rows and at least `capacity` columns."""
        rows = min(round_up_rows(rows), self.rows)
        capacity = min(round_up_capacity(capacity, model.max_len), self.capacity)

        def state() -> tuple[Sequence[Any], Sequence[Tensor]]:
            view = self.state.view(rows, capacity)
            return (view, filters), view.changing()

        self._graphs.run(model, (rows, capacity, filters), state)


def _compile(function: Callable[..., None]) -> Callable[..., None]:
    """Return a step that is compiled at its first call with each combination of sizes and filters."""
    compiled_function = torch.compile(function, fullgraph=True, dynamic=False)

    def step(*arguments: Any) -> None:
        with torch._dynamo.config.patch(recompile_limit=MAX_COMPILED_STEPS):  # pyright: ignore[reportPrivateUsage]
            compiled_function(*arguments)

    return step


def capture(function: Callable[[], None], changing: Sequence[Tensor], pool: Any) -> Callable[[], None]:
    """Capture a function as a CUDA graph; return a function that repeats its GPU work on the same memory.

    Args:
        function: Function to capture; it must not wait for the device.
        changing: Tensors that the function changes. Their values are restored after the warm-up.
        pool: Memory pool of the graph. Several graphs may share one if none reads what another has left there.
    """
    values = [tensor.clone() for tensor in changing]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            function()
        for tensor, value in zip(changing, values, strict=True):
            tensor.copy_(value)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may use the GPU
        function()
    return graph.replay


class ResultReader:
    """Copies results of steps to the host without waiting; at most two copies may be pending.

    Args:
        results: Results of the largest batch, which determine shape, dtype and device.
    """

    def __init__(self, results: Float[Tensor, "B R"]) -> None:
        self._on_gpu = results.is_cuda
        self._buffers = [torch.empty(results.shape, dtype=results.dtype, pin_memory=self._on_gpu) for _ in range(2)]
        self._events = [torch.cuda.Event() for _ in range(2)] if self._on_gpu else []
        self._n_copied = self._n_read = 0

    @property
    def pending(self) -> int:
        """Number of copies that have not been read."""
        return self._n_copied - self._n_read

    def copy(self, results: Float[Tensor, "B R"]) -> None:
        """Start to copy the results of a step, and return without waiting."""
        number = self._n_copied % 2
        self._buffers[number][: len(results)].copy_(results, non_blocking=True)
        if self._on_gpu:
            self._events[number].record()
        self._n_copied += 1

    def read(self) -> list[list[float]]:
        """Wait for the oldest copy that has not been read, and return it.

        It has the rows of the largest batch; rows beyond those that were copied are meaningless.
        """
        number = self._n_read % 2
        if self._on_gpu:
            self._events[number].synchronize()
        self._n_read += 1
        return self._buffers[number].tolist()

    def drop(self) -> None:
        """Discard results that have not been read."""
        self._n_read = self._n_copied


class _Weights:
    """The parameters and buffers of a model and their addresses. Their memory is not freed while this object exists."""

    def __init__(self, model: object) -> None:
        parts = [vars(part) for part in cast("nn.Module", model).modules()]
        self._holders = [part[kind] for part in parts for kind in ("_parameters", "_buffers") if part[kind]]
        self._tensors = self._current()
        self._memory = [tensor.detach() for tensor in self._tensors]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]

    def have_moved(self) -> bool:
        """Return whether a parameter or buffer, or its memory, was replaced."""
        tensors = self._current()
        return list(map(id, tensors)) != list(map(id, self._tensors)) or (
            list(map(Tensor.data_ptr, tensors)) != self._addresses
        )

    def _current(self) -> list[Tensor]:
        return [tensor for tensor in chain.from_iterable(map(dict.values, self._holders)) if tensor is not None]


def matches_weights(cache: StackCache, model: object) -> bool:
    """Return whether the cache has the device and dtype of the model's weights."""
    table, weight = cache.layers[0].self_kv.keys, _first_parameter(model)
    return (table.device, table.dtype) == (weight.device, weight.dtype)


def _first_parameter(model: object) -> Tensor:
    return next(cast("nn.Module", model).parameters())


class Space(Protocol):
    """State with fixed addresses that one generation at a time uses, such as a `Workspace`."""

    @property
    def results(self) -> ResultReader: ...


SpaceType = TypeVar("SpaceType", bound=Space)
_idle: "WeakKeyDictionary[object, dict[type, Any]]" = WeakKeyDictionary()


@contextmanager
def borrow(
    model: object, kind: type[SpaceType], fits: Callable[[SpaceType], bool], make: Callable[[], SpaceType]
) -> Generator[SpaceType]:
    """Provide the idle space of a model with its captured graphs, or a new space if there is none that fits.

    Two concurrent generations do not share a space.

    Args:
        model: The model.
        kind: Type of the space.
        fits: Function that returns whether an idle space can be used.
        make: Function that creates a new space.
    """
    space = _idle.get(model, {}).pop(kind, None)
    if space is not None and not fits(space):
        space = None  # frees its memory for the new one
    if space is None:
        space = make()
    try:
        yield space
    finally:
        space.results.drop()
        _idle.setdefault(model, {})[kind] = space


def workspace(model: GraphModel, *, rows: int, capacity: int, sources: int = 0) -> AbstractContextManager[Workspace]:
    """Provide a workspace of the model that is large enough.

    Args:
        model: The model.
        rows: Number of rows of the batch.
        capacity: Maximum number of tokens per row.
        sources: Maximum number of tokens of a source; 0 without sources.
    """
    return borrow(
        model,
        Workspace,
        lambda space: space.fits(model, rows=rows, capacity=capacity, sources=sources),
        lambda: Workspace(
            model,
            rows=round_up_rows(rows),
            capacity=round_up_capacity(capacity, model.max_len),
            sources=sources and round_up_rows(sources),
            mode=decode_mode(),
        ),
    )

"""Decoding state of the running batch: the KV cache, and the sampling of tokens.

    decode the rows  ->  some join and start  ->  results  ->  some leave  ->  decode ...

`StepSlots` samples on the host after each step. `GraphSlots` runs a CUDA graph per step, whose results are available
one step late. The last row takes the slot of a row that leaves, so the live rows occupy the first slots, and a step
does not have to compute the others.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.config import UserError
from tercet.generation.decode_graphs import (
    ResultReader,
    Workspace,
    can_capture,
    decode_mode,
    round_up_capacity,
    round_up_rows,
)
from tercet.generation.decode_state import N_RESULTS, sample
from tercet.generation.grammar import mask_logits
from tercet.generation.protocol import device_of
from tercet.generation.row_sampling import Filters, RowSettings
from tercet.generation.sampling import DIVERGENCE_MESSAGE, mark_seen
from tercet.models import DecoderOnly
from tercet.nn.cache import StackCache
from tercet.objectives import token_logprobs
from tercet.serve.engine.batch_row import BatchRow
from tercet.serve.engine.cache_slots import CacheSlots
from tercet.serve.engine.sampling import TopTokens, sample_rows, top_tokens

DrawnToken = tuple[int, float, TopTokens]  # (id, its log-probability, the likeliest tokens)

# Prompt tokens per step of a chunked prefill. On a CPU, 64 tokens take as long as two or three decode steps of eight
# rows, and cost little more per token than in a longer forward pass. If no row waits for its next token, the longer
# chunk is read.
CHUNK_WHILE_DECODING, CHUNK_WHILE_IDLE = 64, 256
CHUNK_ON_GPU = 1024  # whether rows are decoding or not; no measurements exist yet
FEWEST_LIKELIEST = 16  # minimum number of likeliest tokens per row if any row requests some


class SlotDecoding(Protocol):
    """The decoding state of the running batch. All methods are called in inference mode.

    Attributes:
        chunk_while_decoding: Prompt tokens to prefill in a step that also decodes rows.
        chunk_while_idle: Prompt tokens to prefill in a step without other rows.
    """

    chunk_while_decoding: int
    chunk_while_idle: int

    def decode(self, rows: list[BatchRow]) -> None:
        """Run a decode step with the last token of each row.

        Args:
            rows: All rows, in the order of their slots.
        """
        ...

    def join(self, row: BatchRow, cache: StackCache, number: int, length: int) -> None:
        """Copy the first `length` tokens of row `number` of `cache` into the next free slot, for `row`."""
        ...

    def begin(self, rows: list[BatchRow], logits: Float[Tensor, "B V"]) -> None:
        """Add rows that have just joined, with the logits after their prompts, to the next results."""
        ...

    def leave(self, slot: int) -> None:
        """Free a slot; the last row takes it."""
        ...

    def results(self) -> dict[BatchRow, DrawnToken | Exception]:
        """Return the next token of each row that was decoded or has started, or the exception if it failed.

        These are the tokens of this step if they are sampled on the host, and of the previous step with CUDA graphs.
        """
        ...


def decode_slots(model: DecoderOnly, slots: int, *, graphs: bool) -> SlotDecoding:
    """Return the decoding state of an empty batch of at most `slots` rows; with CUDA graphs if the model allows it.

    Without `graphs`, none are used, since the next token of a row with a grammar depends on the last one.
    """
    return GraphSlots(model, slots) if graphs and can_capture(model, device_of(model)) else StepSlots(model, slots)


class StepSlots:
    """Decoding with one call of the model per step; the tokens are sampled on the host.

    Args:
        model: The model.
        slots: Maximum number of rows.
    """

    def __init__(self, model: DecoderOnly, slots: int) -> None:
        self.chunk_while_decoding, self.chunk_while_idle = CHUNK_WHILE_DECODING, CHUNK_WHILE_IDLE
        self._model, self._device = model, device_of(model)
        self._slots = CacheSlots(model.new_cache(slots, capacity=0), max_columns=model.max_len)
        self._rows: list[BatchRow] = []
        self._logits: list[Tensor] = []

    def decode(self, rows: list[BatchRow]) -> None:
        last = torch.tensor([row.ids[-1] for row in rows], device=self._device)
        logits = self._model.step(last, self._slots.rows())
        self._slots.advance()
        self.begin(rows, logits)

    def join(self, row: BatchRow, cache: StackCache, number: int, length: int) -> None:
        self._slots.join(cache, number, length)

    def begin(self, rows: list[BatchRow], logits: Float[Tensor, "B V"]) -> None:
        self._rows += rows
        self._logits.append(logits)

    def leave(self, slot: int) -> None:
        self._slots.leave(slot)

    def results(self) -> dict[BatchRow, DrawnToken | Exception]:
        if not self._rows:
            return {}
        rows, logits = self._rows, torch.cat(self._logits)
        self._rows, self._logits = [], []
        ids, errors = sample_rows(rows, mask_logits(logits, [row.grammar for row in rows]))
        logprobs = token_logprobs(logits, torch.tensor(ids, device=logits.device)).tolist()
        tops = top_tokens(logits, [row.top for row in rows])
        sampled = zip(ids, logprobs, tops, strict=True)
        return {row: errors.get(number, token) for number, (row, token) in enumerate(zip(rows, sampled, strict=True))}


@dataclass(eq=False)
class _Slot:
    """A row in a slot, from when it joins until it leaves.

    Attributes:
        length: Number of its tokens in the cache, including those of launched steps.
        read: Number of sampled tokens that the host has read.
        is_removed: If True, pending results are ignored.
    """

    row: BatchRow
    length: int
    read: int = 0
    is_removed: bool = False


@dataclass(frozen=True)
class _LaunchedStep:
    """A step whose results have not been read.

    Attributes:
        slots: Slots at the time of the step.
        reader: Reader of the results.
        likeliest: Number of likeliest tokens in the result of each row.
    """

    slots: list[_Slot]
    reader: ResultReader
    likeliest: int


class GraphSlots:
    """Decoding with one CUDA graph per step, whose results are read while the next one runs.

    Args:
        model: A model whose decode step can be captured.
        slots: Maximum number of rows.
    """

    def __init__(self, model: DecoderOnly, slots: int) -> None:
        self.chunk_while_decoding = self.chunk_while_idle = CHUNK_ON_GPU
        self._model, self._max_rows = model, slots
        self._slots: list[_Slot] = []
        self._pending_steps: deque[_LaunchedStep] = deque()
        self._has_new_results = False
        self._filters: Filters | None = None  # of all rows; None after a row has joined or left
        self._space = Workspace(
            model, rows=round_up_rows(slots), capacity=round_up_capacity(1, model.max_len), mode=decode_mode()
        )

    def decode(self, rows: list[BatchRow]) -> None:
        width = max(slot.length for slot in self._slots) + 1
        self._reserve(width)
        if self._filters is None:
            self._filters = self._filters_of(self._slots)
        self._space.step(self._model, len(rows), min(width, self._model.max_len), self._filters)
        for slot in self._slots:
            slot.length += 1
        self._has_new_results = True

    def join(self, row: BatchRow, cache: StackCache, number: int, length: int) -> None:
        if len(self._slots) == self._max_rows:
            raise ValueError(f"all {self._max_rows} slots are in use; remove a row first")
        self._reserve(length, likeliest=row.top)
        place, state, device = len(self._slots), self._space.state, self._space.device
        state.cache.write_rows(place, cache, number, columns=length)
        state.cache.lengths[place] = length
        state.settings.table[place] = RowSettings.encode([row.settings], self._model.vocab_size)[0].to(device)
        if row.settings.repetition_penalty != 1:
            state.seen_mask[place] = mark_seen([row.ids], state.seen_mask[place : place + 1])[0]
        if row.settings.temperature > 0:
            numbers = row.numbers.peek(min(row.left, self._model.max_len + 1 - length))
            state.uniform[place, length : length + len(numbers)] = numbers.to(device)
        self._slots.append(_Slot(row, length))
        self._filters = None

    def begin(self, rows: list[BatchRow], logits: Float[Tensor, "B V"]) -> None:
        places = slice(len(self._slots) - len(rows), len(self._slots))
        sample(logits, self._space.state.sampled_rows(places), self._filters_of(self._slots[places]))
        self._has_new_results = True

    def leave(self, slot: int) -> None:
        left, last = self._slots[slot], self._slots.pop()
        left.is_removed, self._filters = True, None
        left.row.numbers.skip(left.read)
        if left is not last:
            self._space.state.move_row(len(self._slots), slot, columns=min(last.length, self._space.capacity))
            self._slots[slot] = last

    def results(self) -> dict[BatchRow, DrawnToken | Exception]:
        if self._has_new_results:
            self._space.results.copy(self._space.state.results[: len(self._slots)])
            self._pending_steps.append(_LaunchedStep(list(self._slots), self._space.results, self._space.likeliest))
            self._has_new_results = False
            if len(self._pending_steps) < 2:
                return {}
        if not self._pending_steps:
            return {}
        launched = self._pending_steps.popleft()
        rows = zip(launched.slots, launched.reader.read(), strict=False)
        return {slot.row: _read(slot, values, launched.likeliest) for slot, values in rows if not slot.is_removed}

    def _reserve(self, columns: int, *, likeliest: int = 0) -> None:
        """Extend the tables to `columns` tokens per row and to results with `likeliest` likeliest tokens.

        The context is enough for `columns`, since a row that exceeds it is prefilled again.
        """
        columns, likeliest = min(columns, self._model.max_len), min(likeliest, self._model.vocab_size)
        if columns > self._space.capacity:
            self._space.grow(round_up_capacity(columns, self._model.max_len))
        if likeliest > self._space.likeliest:
            self._space.widen(min(self._model.vocab_size, round_up_rows(max(likeliest, FEWEST_LIKELIEST))))

    def _filters_of(self, slots: Sequence[_Slot]) -> Filters:
        likeliest = self._space.likeliest if any(slot.row.top for slot in slots) else 0
        return Filters.of([slot.row.settings for slot in slots], self._model.vocab_size, likeliest=likeliest)


def _read(slot: _Slot, values: Sequence[float], likeliest: int) -> DrawnToken | Exception:
    """Return the token in the results of a row, or an error if its logits are NaN."""
    token, logprob, diverged = values[:N_RESULTS]
    slot.read += 1
    if diverged:
        return UserError(DIVERGENCE_MESSAGE)
    logprobs, ids = values[N_RESULTS : N_RESULTS + likeliest], values[N_RESULTS + likeliest :]
    return int(token), logprob, tuple(zip(map(int, ids), logprobs, strict=True))[: slot.row.top]

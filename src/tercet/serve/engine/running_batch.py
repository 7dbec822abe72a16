"""Continuous batching: rows join, decode one token per step, and leave.

    step:  decode the live rows  ->  prefill some rows that are to join  ->  sample a token for each

A `SlotDecoding` contains the KV cache and samples the tokens; with CUDA graphs, its results are available one step
late. The model is only called in this module and in `slot_decoding`, in one thread. The result of a row depends on its
own tokens only: rows share no keys, values or random numbers, and each has the context window of `tercet.generation`.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import torch

from tercet.config import UserError
from tercet.generation.decoding import current_device
from tercet.generation.prefill import prefill
from tercet.generation.protocol import device_of, parts_of
from tercet.generation.stream import finish_of, window_moved, window_start
from tercet.models import DecoderOnly
from tercet.models.inference import inference_mode
from tercet.nn.cache import StackCache
from tercet.serve.engine.batch_row import BatchRow
from tercet.serve.engine.sampling import SampledToken
from tercet.serve.engine.slot_decoding import DrawnToken, decode_slots


class RunningBatch:
    """The rows that one model generates, at most `slots`; the caller adds and removes rows between steps.

    Args:
        model: The model.
        slots: Maximum number of rows.
        end_ids: Ids of tokens that end a row when they are sampled.
        graphs: If True, use CUDA graphs if the model allows it. Rows must then have no grammar.
    """

    def __init__(self, model: DecoderOnly, slots: int, end_ids: AbstractSet[int], *, graphs: bool = True) -> None:
        self.model, self.end_ids = model, end_ids
        self.rows: list[BatchRow] = []  # in the order of their slots
        self.prefilling: list[BatchRow] = []  # not yet in a slot, in order of arrival
        self._parts, self._device = parts_of(model), device_of(model)
        self._decoding = decode_slots(model, slots, graphs=graphs)

    def __len__(self) -> int:
        return len(self.rows) + len(self.prefilling)

    def add(self, row: BatchRow) -> None:
        self.prefilling.append(row)

    def remove(self, row: BatchRow) -> None:
        """Remove a row and free its slot; no effect if the row has already been removed."""
        if row in self.rows:
            self._leave(row)
        elif row in self.prefilling:
            self.prefilling.remove(row)

    def step(self) -> dict[BatchRow, SampledToken | Exception]:
        """Run one step and return the next token of each decoded row, and of each row whose prefill is complete.

        For a failed row, the value is the exception, and the row is removed. If a forward pass fails, all its rows
        fail.
        """
        results: dict[BatchRow, SampledToken | Exception] = {}

        def attempt(batch: list[BatchRow], forward: Callable[[list[BatchRow]], None]) -> None:
            try:
                forward(batch)
            except Exception as error:
                results.update(dict.fromkeys(batch, error))

        with inference_mode(self._parts), current_device(self._device):
            budget = self._decoding.chunk_while_decoding if self.rows else self._decoding.chunk_while_idle
            if self.rows:
                attempt(list(self.rows), self._decoding.decode)
            short_prompts, long_prompts = self._next_prompts(budget)
            if short_prompts:
                attempt(short_prompts, self._prefill)
            if long_prompts:
                attempt(long_prompts, lambda batch: self._prefill_chunk(batch[0], budget))
            for row, result in self._decoding.results().items():
                if row not in results:
                    results[row] = result if isinstance(result, Exception) else self._append(row, result)
        for row, result in results.items():
            if isinstance(result, Exception):
                self.remove(row)
            elif window_moved(len(row.ids), self.model.max_len):
                self._leave(row)  # it exceeds the context: the rest after dropping the oldest tokens is prefilled
                self.prefilling.append(row)
        return results

    def _next_prompts(self, budget: int) -> tuple[list[BatchRow], list[BatchRow]]:
        """Return the rows to prefill together, and at most one row with a longer prompt to prefill in chunks.

        Equal prompts (samples of one prompt) are computed once. A step may have rows of both kinds, so that neither
        waits for the other.

        Args:
            budget: Maximum number of tokens of a forward pass, including padding.
        """
        short_prompts: list[BatchRow] = []
        long_prompts: list[BatchRow] = []
        distinct: set[tuple[int, ...]] = set()
        longest = 0
        for row in self.prefilling:
            ids = self._visible(row)
            if row.chunked_cache is not None or len(ids) > budget:
                long_prompts = long_prompts or [row]
                continue
            wider = max(longest, len(ids))
            if len(distinct | {tuple(ids)}) * wider <= budget:
                short_prompts.append(row)
                distinct.add(tuple(ids))
                longest = wider
        return short_prompts, long_prompts

    def _prefill(self, rows: list[BatchRow]) -> None:
        prompts = [self._visible(row) for row in rows]
        logits, cache = prefill(self.model, prompts, capacity=max(map(len, prompts)), device=self._device)
        for number, (row, ids) in enumerate(zip(rows, prompts, strict=True)):
            self._join(row, cache, number, len(ids))
        self._decoding.begin(rows, logits)

    def _prefill_chunk(self, row: BatchRow, budget: int) -> None:
        """Prefill the next `budget` tokens of a long prompt; after the last one, the row joins the batch."""
        ids = self._visible(row)
        if row.chunked_cache is None:
            row.chunked_cache, row.n_prefilled = self.model.new_cache(1, capacity=len(ids)), 0
        chunk = ids[row.n_prefilled : row.n_prefilled + budget]
        tokens = torch.tensor([chunk], device=self._device)
        hidden = self.model.hidden(tokens, cache=row.chunked_cache)  # (1, T, D)
        row.chunked_cache.advance(len(chunk))
        row.n_prefilled += len(chunk)
        if row.n_prefilled == len(ids):
            self._join(row, row.chunked_cache, 0, len(ids))
            self._decoding.begin([row], self.model.logits(hidden[:, -1]))

    def _append(self, row: BatchRow, drawn: DrawnToken) -> SampledToken | UserError:
        """Append a token to its row; return an error if the row's grammar cannot be continued."""
        token, logprob, top = drawn
        row.ids.append(token)
        row.left -= 1
        try:
            finish = finish_of(token, self.end_ids, row.left, row.grammar)
        except UserError as error:
            return error
        return SampledToken(id=token, logprob=logprob, top=top, finish=finish)

    def _visible(self, row: BatchRow) -> list[int]:
        return row.ids[window_start(len(row.ids), self.model.max_len) :]

    def _join(self, row: BatchRow, cache: StackCache, number: int, length: int) -> None:
        self._decoding.join(row, cache, number, length)
        self.prefilling.remove(row)
        self.rows.append(row)
        row.chunked_cache = None

    def _leave(self, row: BatchRow) -> None:
        slot = self.rows.index(row)
        with torch.inference_mode(), current_device(self._device):  # the tables may be inference tensors
            self._decoding.leave(slot)
        last = self.rows.pop()
        if last is not row:
            self.rows[slot] = last

"""The batch that never stands still: rows join it, are decoded, and leave it, a token each a step.

    step:  decode the rows that are there  ->  prefill some of those that want to join  ->  sample a token for each

Their keys, values and draws are a `SlotDecoding`'s: on a GPU its results come a step later.
All that is done to the model is done here, in one thread. What a row gets depends on its own tokens alone: its window
is that of `generation`, its keys and values are its own, and it draws from its own generator.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

import torch

from tercet.generation.decoding import current_device
from tercet.generation.prefill import prefill
from tercet.generation.protocol import device_of, parts_of
from tercet.generation.stream import window_moved, window_start
from tercet.models import DecoderOnly
from tercet.models.inference import inference_mode
from tercet.nn.cache import StackCache
from tercet.serve.engine.batch_row import BatchRow
from tercet.serve.engine.sampling import SampledToken
from tercet.serve.engine.slot_decoding import DrawnToken, decode_slots


class RunningBatch:
    """Rows of one model, at most `slots`; who holds it adds and removes them between steps.

    Args:
        end_ids: tokens that end a row when they are sampled.
    """

    def __init__(self, model: DecoderOnly, slots: int, end_ids: AbstractSet[int]) -> None:
        self.model, self.end_ids = model, end_ids
        self.rows: list[BatchRow] = []  # in the cache's slots, in the order of their slots
        self.prefilling: list[BatchRow] = []  # on their way there, the first to come first
        self._parts, self._device = parts_of(model), device_of(model)
        self._decoding = decode_slots(model, slots)

    def __len__(self) -> int:
        return len(self.rows) + len(self.prefilling)

    def add(self, row: BatchRow) -> None:
        self.prefilling.append(row)

    def remove(self, row: BatchRow) -> None:
        """The row ends here, if it has not failed before; its slot is free."""
        if row in self.rows:
            self._leave(row)
        elif row in self.prefilling:
            self.prefilling.remove(row)

    def step(self) -> dict[BatchRow, SampledToken | Exception]:
        """A token for each row that is decoded, and for those whose prompts have now been read.

        A row that failed is no longer there; where a pass of the model fails, all rows of that pass have.
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
                self._leave(row)  # it has outgrown the context: what it sees now is read anew
                self.prefilling.append(row)
        return results

    def _next_prompts(self, budget: int) -> tuple[list[BatchRow], list[BatchRow]]:
        """The rows whose prompts are read together, and one whose prompt is too long for that and is read in chunks.

        A prompt that comes often (many samples of it) is read once. There may be a row of each kind in a step, so that
        neither waits for the other.
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
        """Read the next `budget` tokens of a long prompt; the row joins once all of it has been read."""
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

    def _append(self, row: BatchRow, drawn: DrawnToken) -> SampledToken:
        token, logprob, top = drawn
        row.ids.append(token)
        row.left -= 1
        finish = "eos" if token in self.end_ids else None if row.left else "length"
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
        with torch.inference_mode(), current_device(self._device):  # as the tables were made
            self._decoding.leave(slot)
        last = self.rows.pop()
        if last is not row:
            self.rows[slot] = last

"""The batch that never stands still: rows join it, are decoded, and leave it, a token each a step.

    step:  decode the rows that are there  ->  prefill some of those that want to join  ->  sample a token for each

All that is done to the model is done here, in one thread. What a row gets depends on its own tokens alone: its window
is that of `generation`, its keys and values are its own, and it draws from its own generator.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.generation.prefill import prefill
from tercet.generation.protocol import device_of, parts_of
from tercet.generation.specs import Sampling
from tercet.generation.stream import window_moved, window_start
from tercet.models import DecoderOnly
from tercet.models.inference import inference_mode
from tercet.nn.cache import StackCache
from tercet.objectives import token_logprobs
from tercet.serve.engine.cache_slots import CacheSlots
from tercet.serve.engine.sampling import SampledToken, sample_rows, top_tokens

# Chunked prefill: prompt tokens read in one step. While rows wait for their next token, 64 take as long as two or three
# decode steps of eight rows on a CPU, and cost little more each than in a longer pass; where none waits, more are read.
CHUNK_WHILE_DECODING, CHUNK_WHILE_IDLE = 64, 256


class BatchRow:
    """One text that is generated.

    Args:
        ids: its tokens so far, at least one.
        top: how many of the likeliest tokens come beside each that is sampled.
    """

    def __init__(self, ids: Iterable[int], sampling: Sampling, *, top: int = 0) -> None:
        self.ids = list(ids)
        self.top = top
        self.left = sampling.max_new_tokens  # tokens yet to be sampled
        self.generator = torch.Generator().manual_seed(sampling.seed)
        # Rows whose settings are equal but for these are sampled together.
        self.settings = replace(sampling, seed=0, stop=(), max_new_tokens=0)
        # Of a prompt too long to be read at once, as far as it has been read.
        self.chunked_cache: StackCache | None = None
        self.n_prefilled = 0  # how many tokens that is


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
        self._slots = CacheSlots(model.new_cache(slots, capacity=0), most=model.max_len)

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
        rows: list[BatchRow] = []
        logits: list[Tensor] = []

        def attempt(batch: list[BatchRow], forward: Callable[[list[BatchRow]], Tensor | None]) -> None:
            try:
                batch_logits = forward(batch)
            except Exception as error:
                results.update(dict.fromkeys(batch, error))
            else:
                if batch_logits is not None:
                    rows.extend(batch)
                    logits.append(batch_logits)

        with inference_mode(self._parts):
            budget = CHUNK_WHILE_DECODING if self.rows else CHUNK_WHILE_IDLE
            if self.rows:
                attempt(list(self.rows), self._decode)
            whole, chunked = self._next_prompts(budget)
            if whole:
                attempt(whole, self._prefill)
            if chunked:
                attempt(chunked, lambda batch: self._prefill_chunk(batch[0], budget))
            if rows:
                results.update(zip(rows, self._sample(rows, torch.cat(logits)), strict=True))
        for row, result in results.items():
            if isinstance(result, Exception):
                self.remove(row)
            elif window_moved(len(row.ids), self.model.max_len):
                self._leave(row)  # it has outgrown the context: what it sees now is read anew
                self.prefilling.append(row)
        return results

    def _decode(self, rows: list[BatchRow]) -> Float[Tensor, "B V"]:
        last = torch.tensor([row.ids[-1] for row in rows], device=self._device)
        logits = self.model.step(last, self._slots.rows())
        self._slots.advance()
        return logits

    def _next_prompts(self, budget: int) -> tuple[list[BatchRow], list[BatchRow]]:
        """The rows whose prompts are read together, and one whose prompt is too long for that and is read in chunks.

        A prompt that comes often (many samples of it) is read once. There may be a row of each kind in a step, so that
        neither waits for the other.
        """
        whole: list[BatchRow] = []
        chunked: list[BatchRow] = []
        distinct: set[tuple[int, ...]] = set()
        longest = 0
        for row in self.prefilling:
            ids = self._visible(row)
            if row.chunked_cache is not None or len(ids) > budget:
                chunked = chunked or [row]
                continue
            wider = max(longest, len(ids))
            if len(distinct | {tuple(ids)}) * wider <= budget:
                whole.append(row)
                distinct.add(tuple(ids))
                longest = wider
        return whole, chunked

    def _prefill(self, rows: list[BatchRow]) -> Float[Tensor, "B V"]:
        prompts = [self._visible(row) for row in rows]
        logits, cache = prefill(self.model, prompts, capacity=max(map(len, prompts)), device=self._device)
        for number, (row, ids) in enumerate(zip(rows, prompts, strict=True)):
            self._join(row, cache, number, len(ids))
        return logits

    def _prefill_chunk(self, row: BatchRow, budget: int) -> Float[Tensor, "1 V"] | None:
        """Read the next `budget` tokens of a long prompt; the logits once all of it has been read."""
        ids = self._visible(row)
        if row.chunked_cache is None:
            row.chunked_cache, row.n_prefilled = self.model.new_cache(1, capacity=len(ids)), 0
        chunk = ids[row.n_prefilled : row.n_prefilled + budget]
        tokens = torch.tensor([chunk], device=self._device)
        hidden = self.model.hidden(tokens, cache=row.chunked_cache)  # (1, T, D)
        row.chunked_cache.advance(len(chunk))
        row.n_prefilled += len(chunk)
        if row.n_prefilled < len(ids):
            return None
        self._join(row, row.chunked_cache, 0, len(ids))
        return self.model.logits(hidden[:, -1])

    def _sample(self, rows: Sequence[BatchRow], logits: Float[Tensor, "B V"]) -> list[SampledToken | Exception]:
        ids, errors = sample_rows(rows, logits)
        logprobs = token_logprobs(logits, torch.tensor(ids, device=logits.device)).tolist()
        tops = top_tokens(logits, [row.top for row in rows])
        results: list[SampledToken | Exception] = []
        for number, (row, token, logprob, top) in enumerate(zip(rows, ids, logprobs, tops, strict=True)):
            if number in errors:
                results.append(errors[number])
                continue
            row.ids.append(token)
            row.left -= 1
            finish = "eos" if token in self.end_ids else None if row.left else "length"
            results.append(SampledToken(id=token, logprob=logprob, top=top, finish=finish))
        return results

    def _visible(self, row: BatchRow) -> list[int]:
        return row.ids[window_start(len(row.ids), self.model.max_len) :]

    def _join(self, row: BatchRow, cache: StackCache, number: int, length: int) -> None:
        self._slots.join(cache, number, length)
        self.prefilling.remove(row)
        self.rows.append(row)
        row.chunked_cache = None

    def _leave(self, row: BatchRow) -> None:
        slot = self.rows.index(row)
        with torch.inference_mode():  # as the tables were made
            self._slots.leave(slot)
        last = self.rows.pop()
        if last is not row:
            self.rows[slot] = last

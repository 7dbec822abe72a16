"""The batch that never stands still: rows join it, are written on, and leave it, a token each a turn.

    turn:  step the rows that are there  ->  read some of those that want to join  ->  draw a token for each

All that is done to the model is done here, in one thread. What a row gets depends on its own tokens alone: its window
is that of `generation`, its keys and values are its own, and it draws from its own generator.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.generation.protocol import device_of, parts_of
from tercet.generation.reading import read
from tercet.generation.sampling import Sampling
from tercet.generation.stream import choose, window_moved, window_start
from tercet.models import DecoderOnly
from tercet.models.rest import at_rest
from tercet.nn.cache import Cache, Slots

# Tokens that are read in one turn while others wait for their next one: 64 take as long as two or three steps of eight
# rows on a CPU, and cost little more each than in a longer pass. Where nobody is kept waiting, more are read at once.
BETWEEN_STEPS, UNDISTURBED = 64, 256

TopTokens = tuple[tuple[int, float], ...]


class Row:
    """One text that is written.

    Args:
        ids: its tokens so far, at least one.
        top: how many of the likeliest tokens are told beside each that is drawn.
    """

    def __init__(self, ids: Iterable[int], sampling: Sampling, *, top: int = 0) -> None:
        self.ids = list(ids)
        self.top = top
        self.generator = torch.Generator().manual_seed(sampling.seed)
        # Rows whose settings are equal but for these are drawn together.
        self.settings = replace(sampling, seed=0, stop=(), max_new_tokens=0)
        self.part: Cache | None = None  # what has been read of a text too long to be read at once
        self.done = 0  # how many tokens that is


class Drawn:
    """What a turn brought a row: a token, its log-probability and the likeliest ones; or why there will be none."""

    def __init__(self, row: Row, token: int, logprob: float, top: TopTokens) -> None:
        self.row, self.token, self.logprob, self.top = row, token, logprob, top


class Failed:
    def __init__(self, row: Row, error: Exception) -> None:
        self.row, self.error = row, error


class Running:
    """Rows of one model, at most `slots`; who holds it adds and removes them between turns."""

    def __init__(self, model: DecoderOnly, slots: int) -> None:
        self.model = model
        self.rows: list[Row] = []  # in the slots, in the order of their places
        self.reading: list[Row] = []  # on their way there, the first to come first
        self._parts, self._device = parts_of(model), device_of(model)
        self._slots = Slots(model.stack.new_cache(slots, capacity=0), most=model.max_len)

    def __len__(self) -> int:
        return len(self.rows) + len(self.reading)

    def add(self, row: Row) -> None:
        self.reading.append(row)

    def remove(self, row: Row) -> None:
        """The row ends here, if it has not failed before; its place is free."""
        if row in self.rows:
            self._leave(row)
        elif row in self.reading:
            self.reading.remove(row)

    def turn(self) -> list[Drawn | Failed]:
        """A token for each row that is being written, and for those that have now been read.

        A row that failed is no longer there; where a pass of the model fails, all rows of that pass have.
        """
        failed: list[Failed] = []
        rows: list[Row] = []
        logits: list[Tensor] = []

        def attempt(which: list[Row], work: Callable[[list[Row]], Tensor | None]) -> None:
            try:
                found = work(which)
            except Exception as error:
                for row in which:
                    self.remove(row)
                    failed.append(Failed(row, error))
            else:
                if found is not None:
                    rows.extend(which)
                    logits.append(found)

        with at_rest(self._parts):
            budget = BETWEEN_STEPS if self.rows else UNDISTURBED
            if self.rows:
                attempt(list(self.rows), self._step)
            together, alone = self._to_read(budget)
            if together:
                attempt(together, self._read)
            if alone:
                attempt(alone, lambda which: self._read_on(which[0], budget))
            drawn = self._draw(rows, torch.cat(logits)) if rows else []
        for found in drawn:
            if isinstance(found, Failed):
                self.remove(found.row)
            elif window_moved(len(found.row.ids), self.model.max_len):
                self._leave(found.row)  # it has outgrown the context: what it sees now is read anew
                self.reading.append(found.row)
        return [*failed, *drawn]

    def _step(self, rows: list[Row]) -> Float[Tensor, "B V"]:
        last = torch.tensor([row.ids[-1] for row in rows], device=self._device)
        logits = self.model.step(last, self._slots.rows())
        self._slots.advance()
        return logits

    def _to_read(self, budget: int) -> tuple[list[Row], list[Row]]:
        """The rows to read together, and one that is too long for that and is read bit by bit.

        A text that comes often (many samples of one prompt) is read once. There may be a row of each kind in a turn,
        so that neither waits for the other.
        """
        together: list[Row] = []
        alone: list[Row] = []
        distinct: set[tuple[int, ...]] = set()
        longest = 0
        for row in self.reading:
            text = self._visible(row)
            if row.part is not None or len(text) > budget:
                alone = alone or [row]
                continue
            wider = max(longest, len(text))
            if len(distinct | {tuple(text)}) * wider <= budget:
                together.append(row)
                distinct.add(tuple(text))
                longest = wider
        return together, alone

    def _read(self, rows: list[Row]) -> Float[Tensor, "B V"]:
        texts = [self._visible(row) for row in rows]
        logits, cache = read(self.model, texts, capacity=max(map(len, texts)), device=self._device)
        for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
            self._join(row, cache, number, len(text))
        return logits

    def _read_on(self, row: Row, budget: int) -> Float[Tensor, "1 V"] | None:
        """The next `budget` tokens of a long text; the logits once it has been read."""
        text = self._visible(row)
        if row.part is None:
            row.part, row.done = self.model.stack.new_cache(1, capacity=len(text)), 0
        new = text[row.done : row.done + budget]
        hidden = self.model.hidden(torch.tensor([new], device=self._device), cache=row.part)  # (1, T, D)
        row.part.advance(len(new))
        row.done += len(new)
        if row.done < len(text):
            return None
        self._join(row, row.part, 0, len(text))
        return self.model.logits(hidden[:, -1])

    def _draw(self, rows: Sequence[Row], logits: Float[Tensor, "B V"]) -> list[Drawn | Failed]:
        logprobs = logits.float().log_softmax(-1)  # (B, V)
        tokens, errors = self._chosen(rows, logits)
        own = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
        tops = _likeliest(logprobs, [row.top for row in rows])
        drawn: list[Drawn | Failed] = []
        for number, row in enumerate(rows):
            if number in errors:
                drawn.append(Failed(row, errors[number]))
                continue
            row.ids.append(tokens[number])
            drawn.append(Drawn(row, tokens[number], own[number], tops[number]))
        return drawn

    def _chosen(self, rows: Sequence[Row], logits: Float[Tensor, "B V"]) -> tuple[list[int], dict[int, Exception]]:
        """The next token of each row; and the error of those that have none, by their number."""
        groups: dict[Sampling, list[int]] = {}
        for number, row in enumerate(rows):
            groups.setdefault(row.settings, []).append(number)
        tokens, errors = [0] * len(rows), dict[int, Exception]()
        waiting = list(groups.values())
        while waiting:
            group = waiting.pop()
            mine = logits if len(group) == len(rows) else logits[group]
            members = [rows[number] for number in group]
            try:
                ids = choose(
                    mine, [row.ids for row in members], members[0].settings, [row.generator for row in members]
                )
            except Exception as error:
                if len(group) == 1:
                    errors[group[0]] = error
                else:  # somebody's numbers are none: each alone, so that it is nobody else's fault
                    waiting += [[number] for number in group]
                continue
            for number, token in zip(group, ids.tolist(), strict=True):
                tokens[number] = token
        return tokens, errors

    def _visible(self, row: Row) -> list[int]:
        return row.ids[window_start(len(row.ids), self.model.max_len) :]

    def _join(self, row: Row, cache: Cache, number: int, length: int) -> None:
        self._slots.join(cache, number, length)
        self.reading.remove(row)
        self.rows.append(row)
        row.part = None

    def _leave(self, row: Row) -> None:
        place = self.rows.index(row)
        with torch.inference_mode():  # as the tables were made
            self._slots.leave(place)
        last = self.rows.pop()
        if last is not row:
            self.rows[place] = last


def _likeliest(logprobs: Float[Tensor, "B V"], counts: Sequence[int]) -> list[TopTokens]:
    """For each row its so many likeliest tokens, the likeliest first, with their log-probabilities."""
    most = max(counts)
    if not most:
        return [()] * len(counts)
    values, ids = logprobs.topk(most, dim=-1)
    pairs = zip(ids.tolist(), values.tolist(), counts, strict=True)
    return [tuple(zip(row[:count], own[:count], strict=True)) for row, own, count in pairs]

"""Continuous batching: requests that come at any time are written together, a token each a turn.

One thread owns the model. A newcomer is read between two steps and joins the rows that are being written; whoever has
ended frees its slot at once. What a request gets is what `generation.generate` gives its prompt alone, whatever else is
going on.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tercet.generation.sampling import Sampling
from tercet.generation.stream import Token
from tercet.generation.text import TextRow, end_ids
from tercet.models import DecoderOnly
from tercet.serve.desk import Desk, Job, Why
from tercet.serve.limits import Closing, Limits
from tercet.serve.running import Drawn, Failed, Row, Running, TopTokens
from tercet.tokens import Tokenizer

log = logging.getLogger(__name__)
Finish = Literal["stop", "eos", "length", "time"]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A prompt's tokens and how to go on with it."""

    ids: tuple[int, ...]
    sampling: Sampling
    top_logprobs: int = 0  # how many of the likeliest tokens are told beside each that is drawn


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What is new since the last piece."""

    text: str  # may be "" while a character or a possible stop text is unfinished
    tokens: tuple[Token, ...]
    top: tuple[TopTokens, ...]  # for each token the likeliest in its place, with the model's own log-probabilities
    finish: Finish | None  # with the last piece; "time" where `limits.seconds` are over


class Engine:
    """One worker thread, which is started.

    Args:
        limits: at most `limits.slots` requests are written at once.
    """

    def __init__(self, model: DecoderOnly, tokenizer: Tokenizer, limits: Limits) -> None:
        self._tokenizer, self._limits = tokenizer, limits
        self._vocab_size, self._ends = model.vocab_size, end_ids(tokenizer)
        self._model, self._batch = model, Running(model, limits.slots)
        self._texts: dict[Row, _Text] = {}  # of all rows in the batch
        self._desk = Desk[Ask](limits, self._work, name="tercet-engine")
        self._desk.open()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> int:
        return self._desk.running

    @property
    def waiting(self) -> int:
        return self._desk.waiting

    def submit(self, ask: Ask, on_piece: Callable[[Piece | Exception], None]) -> Job[Ask]:
        """Ask for a text; in any thread.

        Args:
            on_piece: is called in the worker's thread with each piece. The last has a `finish`, or is an exception:
                `UserError` where the model's outputs are not numbers, `Closing`, or what the model raised. Never after
                `Job.cancel`. It must be quick, for all others wait; what it raises is logged, and its request is
                cancelled.

        Raises:
            Full, Closing: where the request is not taken in.
            ValueError: where the model cannot read it.
        """
        self._check(ask)
        return self._desk.submit(ask, on_piece)

    def close(self, *, seconds: float | None = None) -> None:
        """Take no more, finish what there is (until `seconds` are over; then they get `Closing`), end the thread."""
        self._desk.close(seconds=seconds)

    def _check(self, ask: Ask) -> None:
        if not ask.ids:
            raise ValueError("the prompt is empty: it needs at least one token")
        if not 0 <= min(ask.ids) <= max(ask.ids) < self._vocab_size:
            wrong = next(token for token in ask.ids if not 0 <= token < self._vocab_size)
            raise ValueError(f"the vocabulary has no id {wrong}; ids are 0 to {self._vocab_size - 1}")
        if ask.sampling.max_new_tokens > (most := self._limits.max_new_tokens):
            raise ValueError(
                f"max_new_tokens={ask.sampling.max_new_tokens} is more than the {most} that may be asked for"
            )
        if not 0 <= ask.top_logprobs <= self._vocab_size:
            raise ValueError(f"top_logprobs={ask.top_logprobs} must be between 0 and {self._vocab_size}")

    def _work(self) -> None:
        while not self._desk.closed or self._desk.waiting or self._batch:
            try:
                self._turn()
            except Exception as error:  # a fault of ours: it must not take those with it who come later
                log.exception("all requests in work end")
                for text in self._texts.values():
                    text.job.tell(error, last=True)
                self._texts.clear()
                self._batch = Running(self._model, self._limits.slots)

    def _turn(self) -> None:
        self._end_the_late()
        self._leave_those_that_are_over()
        for job in self._desk.take(self._limits.slots - len(self._batch), patient=not self._batch):
            self._begin(job)
        for found in self._batch.turn():
            try:
                self._tell(found)
            except Exception as error:  # the tokenizer's, say: it is this request's alone
                log.exception("a request ends")
                self._texts[found.row].job.tell(error, last=True)

    def _begin(self, job: Job[Ask]) -> None:
        ask = job.work
        if ask.sampling.max_new_tokens == 0:
            job.tell(Piece(text="", tokens=(), top=(), finish="length"), last=True)
            return
        row = Row(ask.ids, ask.sampling, top=ask.top_logprobs)
        self._texts[row] = _Text(job, TextRow(self._tokenizer, ask.sampling.stop))
        self._batch.add(row)

    def _tell(self, found: Drawn | Failed) -> None:
        text = self._texts[found.row]
        if isinstance(found, Failed):
            log.error("a request ends: %s", found.error)
            text.job.tell(found.error, last=True)
            return
        left = text.job.work.sampling.max_new_tokens - len(text.written.tokens) - 1
        finish = "eos" if found.token in self._ends else None if left else "length"
        token = Token(id=found.token, logprob=found.logprob, finish=finish)
        piece = text.written.read(token)
        over = finish is not None or text.written.finish == "stop"
        told = Piece(text=piece, tokens=(token,), top=(found.top,), finish=text.written.finish if over else None)
        text.job.tell(told, last=over)

    def _end_the_late(self) -> None:
        texts = {text.job: text for text in self._texts.values()}
        for job, why in self._desk.overdue():
            job.tell(_end(why, texts.get(job)), last=True)

    def _leave_those_that_are_over(self) -> None:
        for row in [row for row, text in self._texts.items() if text.job.over]:
            self._batch.remove(row)
            del self._texts[row]


@dataclass
class _Text:
    """A row on the way back to who asked for it."""

    job: Job[Ask]
    written: TextRow


def _end(why: Why, text: _Text | None) -> Piece | Closing:
    if why == "closing":
        return Closing("the server went down before this was finished")
    return Piece(text="" if text is None else text.written.flush(), tokens=(), top=(), finish="time")

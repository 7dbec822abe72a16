"""Beam search: the few most likely beginnings are kept and continued together, until the best endings are known.

    score(Y) = log P(Y | X) / norm(|Y|) + coverage(X, Y)

The norm is |Y|^alpha ("average"), ((5 + |Y|) / 6)^alpha ("gnmt": Wu et al. 2016, equation 14) or 1 ("none"); |Y| counts
the tokens written, the end included. Live hypotheses compete by log-probability alone, which is fair as all of them are
equally long; only finished ones are compared by score. What has ended leaves the beam and is never continued.

A sentence is done when `size` hypotheses have ended and the best live one, as it stands, would not come before them;
to stop at `size` alone returns unlikely short endings where a sure, long one is on its way. It is done as well when no
live one can still reach the list: a log-probability never rises, so log P(now) / norm(longest) bounds every
continuation. Stopping there changes nothing but the time.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tercet.generation.alignment import coverage_penalties
from tercet.generation.beam_decoding import BeamBatch, BeamDecoding
from tercet.generation.beam_graphs import beams_of
from tercet.generation.decode_graphs import can_capture
from tercet.generation.protocol import AnyDecoder, CacheType, device_of, parts_of
from tercet.generation.specs import Beam
from tercet.models.inference import inference_mode


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """What was written after a prefix. `ids` ends with the end token where the model wrote it, finish "eos", and not
    where the room ended, finish "length": no end is made up."""

    ids: tuple[int, ...]
    logprob: float  # the sum of natural logs of the model's own probabilities, added up in float32
    logprobs: tuple[float, ...]
    score: float
    finish: Literal["eos", "length"]


def beam_search(
    model: AnyDecoder[CacheType],
    prefixes: Sequence[Sequence[int]],
    beam: Beam,
    *,
    eos_id: int,
    forbidden: Set[int] = frozenset(),
    sources: Sequence[Sequence[int]] | None = None,
    source_pad: int = 0,
    max_new_tokens: Sequence[int] | int,
    min_new_tokens: Sequence[int] | int = 0,
) -> list[list[Hypothesis]]:
    """The `n_best` best continuations of each prefix, fewer only where there are no more, all different.

    First come those that ended, by score, then those cut by their limit, by score: so the first of five is the first of
    one. Between equals the one that ended earlier, then the likelier one, then the lowest ids come first. Nothing about
    a sentence depends on its neighbours in the batch.

    Args:
        model: see `Decoder` and `SourceDecoder`; it is left in the mode, training or not, in which it was found.
        prefixes: token ids, at least one each; the scores are without them.
        eos_id: the id that ends a hypothesis.
        forbidden: ids that are never written. Probabilities stay the model's own.
        sources: one for each prefix, where the model is a `SourceDecoder`.
        source_pad: any id of the source's vocabulary.
        max_new_tokens: the most tokens of each hypothesis, its end included; the model's max_len is kept as well.
        min_new_tokens: the fewest tokens before the end.

    Raises:
        ValueError: for arguments that do not fit together.
        UserError: where the model's outputs are not numbers.
    """
    _check(model, prefixes, eos_id, forbidden, sources)
    limits, shortest = (_limit_per_sentence(limit, len(prefixes)) for limit in (max_new_tokens, min_new_tokens))
    sentences = [
        _Sentence(
            beam=beam,
            prefix=prefix,
            source=() if sources is None else sources[number],
            limit=min(limits[number], model.max_len + 1 - len(prefix)),  # the last token is written, never read
            shortest=shortest[number],
        )
        for number, prefix in enumerate(prefixes)
    ]
    open_sentences = [sentence for sentence in sentences if sentence.limit > 0]
    use_graphs = can_capture(model, device_of(model))  # asked while a model that is being trained is in training mode
    with inference_mode(parts_of(model)):
        if open_sentences:
            batch = _make_batch(
                open_sentences, size=beam.size, eos_id=eos_id, forbidden=forbidden, source_pad=source_pad,
                has_sources=sources is not None,
            )  # fmt: skip
            with beams_of(model, batch, use_graphs=use_graphs) as decoding:
                _search(decoding, open_sentences, batch)
        if beam.coverage and sources is not None:
            for sentence in sentences:
                _rank_by_coverage(model, sentence)
    return [sentence.best() for sentence in sentences]


@dataclass(kw_only=True)
class _Sentence:
    """A sentence, and what its search has come to so far."""

    beam: Beam
    prefix: Sequence[int]
    source: Sequence[int]
    limit: int
    shortest: int
    finished: list[Hypothesis] = field(default_factory=list[Hypothesis])
    cut: list[Hypothesis] = field(default_factory=list[Hypothesis])

    def add(self, ids: Sequence[int], totals: Sequence[float], finish: Literal["eos", "length"]) -> None:
        logprobs = tuple(current - previous for previous, current in zip([0.0, *totals[:-1]], totals, strict=True))
        score = self.beam.score(totals[-1], len(ids))
        hypothesis = Hypothesis(ids=tuple(ids), logprob=totals[-1], logprobs=logprobs, score=score, finish=finish)
        (self.finished if finish == "eos" else self.cut).append(hypothesis)

    def is_done(self, best_total: float, length: int) -> bool:
        """Whether the live hypotheses, the best of which has come to `best_total`, need not be followed any further."""
        if best_total == -math.inf:
            return True
        if len(self.finished) < self.beam.n_best:
            return False
        scores = sorted((hypothesis.score for hypothesis in self.finished), reverse=True)
        # A guess, for a live hypothesis may still rise: it is the same for any n_best, or the first of five would be
        # another than the first of one.
        if len(scores) >= self.beam.size and self.beam.score(best_total, length) <= scores[0]:
            return True
        # A bound, which holds. With coverage any ending may come first: all are waited for.
        return not self.beam.coverage and self.beam.score(best_total, self.limit) <= scores[self.beam.n_best - 1]

    def best(self) -> list[Hypothesis]:
        if self.limit == 0:
            return [Hypothesis(ids=(), logprob=0.0, logprobs=(), score=0.0, finish="length")]
        ranking = [sorted(kind, key=lambda hypothesis: -hypothesis.score) for kind in (self.finished, self.cut)]
        return (ranking[0] + ranking[1])[: self.beam.n_best]


def _make_batch(
    sentences: Sequence[_Sentence], *, size: int, eos_id: int, forbidden: Set[int], source_pad: int, has_sources: bool
) -> BeamBatch:
    return BeamBatch(
        prefixes=[sentence.prefix for sentence in sentences],
        sources=[sentence.source for sentence in sentences] if has_sources else None,
        source_pad=source_pad,
        limits=[sentence.limit for sentence in sentences],
        shortest=[sentence.shortest for sentence in sentences],
        size=size,
        eos_id=eos_id,
        forbidden=forbidden,
    )


def _search(decoding: BeamDecoding, sentences: Sequence[_Sentence], batch: BeamBatch) -> None:
    """Fill `sentences`, all of them with room for a token; those still `live` are searched together.

    What each hypothesis has written is kept on the host as (N, H, t) arrays: N live sentences, H hypotheses of each,
    one before the first step. A step hands the host one tensor and gets the next tokens back.
    """
    live, size = list(sentences), batch.size
    ids = np.zeros((len(live), 1, 0), dtype=np.int64)  # (N, H, t)
    totals = np.zeros((len(live), 1, 0))  # (N, H, t): log-probabilities up to each token
    length = 0
    while True:
        values, parents, tokens = decoding.candidates()  # (N, count), best first
        length += 1
        slots = np.arange(len(live))[:, None]
        ids = np.concatenate((ids[slots, parents], tokens[..., None]), axis=-1)
        totals = np.concatenate((totals[slots, parents], values[..., None]), axis=-1)

        ends = tokens == batch.eos_id
        for slot, rank in np.argwhere(ends[:, :size] & (values[:, :size] > -math.inf)):
            live[slot].add(ids[slot, rank].tolist(), totals[slot, rank].tolist(), "eos")
        continuing = np.argsort(ends, axis=1, kind="stable")[:, :size]  # the first `size` that go on
        ids, totals, parents = ids[slots, continuing], totals[slots, continuing], parents[slots, continuing]
        values = np.where(ends, -math.inf, values)[
            slots, continuing
        ]  # (N, size): where too few go on, some do not exist

        live_slots: list[int] = []
        for slot, sentence in enumerate(live):
            if length == sentence.limit:
                for rank in np.flatnonzero(values[slot] > -math.inf):
                    sentence.add(ids[slot, rank].tolist(), totals[slot, rank].tolist(), "length")
            elif not sentence.is_done(float(values[slot, 0]), length):
                live_slots.append(slot)
        if not live_slots:
            return
        decoding.advance(live_slots, values, parents, ids[..., -1])
        live, ids, totals = [live[slot] for slot in live_slots], ids[live_slots], totals[live_slots]


def _rank_by_coverage(model: object, sentence: _Sentence) -> None:
    """Lower each score by what its hypothesis left unattended of the source."""
    for kind in (sentence.finished, sentence.cut):
        if kind:
            targets = [(*sentence.prefix, *hypothesis.ids) for hypothesis in kind]
            penalties = coverage_penalties(model, sentence.source, targets)
            kind[:] = [
                replace(hypothesis, score=hypothesis.score + sentence.beam.coverage * penalty)
                for hypothesis, penalty in zip(kind, penalties, strict=True)
            ]


def _limit_per_sentence(limit: Sequence[int] | int, n: int) -> list[int]:
    """One number a sentence."""
    numbers = [limit] * n if isinstance(limit, int) else list(limit)
    if len(numbers) != n:
        raise ValueError(f"{n} prefixes need as many limits, got {len(numbers)}")
    if min(numbers, default=0) < 0:
        raise ValueError(f"a limit of {min(numbers)} tokens must be 0 or more")
    return numbers


def _check(
    model: AnyDecoder[CacheType],
    prefixes: Sequence[Sequence[int]],
    eos_id: int,
    forbidden: Set[int],
    sources: Sequence[Sequence[int]] | None,
) -> None:
    if eos_id in forbidden:
        raise ValueError(f"eos_id={eos_id} must not be forbidden: nothing could end; try min_new_tokens")
    if sources is not None and len(sources) != len(prefixes):
        raise ValueError(f"{len(prefixes)} prefixes need as many sources, got {len(sources)}")
    for kind, rows in (("prefix", prefixes), ("source", sources or ())):
        for number, row in enumerate(rows):
            if not 1 <= len(row) <= model.max_len:
                raise ValueError(
                    f"{kind} {number} of {len(rows)} has {len(row)} tokens; it needs 1 to max_len={model.max_len}"
                )

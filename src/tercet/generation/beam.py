"""Beam search: continue the most likely hypotheses together until the best results are known.

    score(Y) = log P(Y | X) / norm(|Y|) + coverage weight * coverage penalty(X, Y)

The norm is |Y|^alpha ("average"), ((5 + |Y|) / 6)^alpha ("gnmt": Wu et al. 2016, equation 14) or 1 ("none"). |Y| is
the number of generated tokens, including the end token. The coverage penalty is that of
`alignment.coverage_penalties`; it is added to the scores after the search. Live hypotheses have equal lengths, so they
compete by log-probability only; finished hypotheses are compared by score. A finished hypothesis leaves the beam.

The search of a sentence ends if `size` hypotheses are finished and the best live one, scored at its present length,
does not rank above the best of them. Without this comparison, the search would return unlikely short hypotheses
although a likely long one is still live. The search also ends if no live hypothesis can still be among the best
`n_best`: log-probabilities never rise, so log P(present) / norm(longest) is an upper bound of the score. This second
rule does not change the result; it is not applied with coverage, for which the bound does not hold.
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
    """A continuation of a prefix.

    If `finish` is "eos", `ids` ends with the end token. If it is "length", the limit was reached and no end token is
    added.
    """

    ids: tuple[int, ...]  # generated tokens, without the prefix
    logprob: float  # sum of natural logarithms of the model's probabilities
    logprobs: tuple[float, ...]  # log-probability of each token of `ids`
    score: float  # ranks hypotheses; higher is better
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
    """Return the `beam.n_best` best continuations of each prefix, or fewer if fewer exist; all are different.

    Finished hypotheses come first, sorted by score, then those cut by their limit, sorted by score. A larger `n_best`
    does not change the best hypothesis. Among equal scores, the hypothesis that ended earlier comes first, then the one
    with the higher log-probability. The result for a sentence does not depend on the other sentences of the batch.

    Args:
        model: A `Decoder` or `SourceDecoder`; its mode (train or eval) is restored.
        prefixes: Token ids, at least one per prefix; they do not count in the scores.
        beam: Search settings, except for the lengths, which `max_new_tokens` and `min_new_tokens` give.
        eos_id: Id that ends a hypothesis.
        forbidden: Ids that are never generated. Probabilities are not renormalized.
        sources: Source ids of each prefix, for a `SourceDecoder`.
        source_pad: Any id of the source vocabulary, for padding.
        max_new_tokens: Maximum number of tokens per hypothesis, including its end token; `model.max_len` also applies.
        min_new_tokens: Minimum number of tokens before the end token. Both limits are one number, or one per prefix.

    Raises:
        ValueError: If `eos_id` is forbidden, the length of a prefix or source is not in 1..max_len, a limit is
            negative, the numbers of rows differ, or `beam.coverage` is above 0 and a model has no cross-attention.
        UserError: If the model's outputs are NaN.
    """
    _check(model, prefixes, eos_id, forbidden, sources)
    limits, shortest = (_limit_per_sentence(limit, len(prefixes)) for limit in (max_new_tokens, min_new_tokens))
    sentences = [
        _Sentence(
            beam=beam,
            prefix=prefix,
            source=() if sources is None else sources[number],
            limit=min(limits[number], model.max_len + 1 - len(prefix)),  # the last token is never an input
            shortest=shortest[number],
        )
        for number, prefix in enumerate(prefixes)
    ]
    open_sentences = [sentence for sentence in sentences if sentence.limit > 0]
    use_graphs = can_capture(model, device_of(model))  # before the context below sets the eval mode
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
    """A sentence and its finished hypotheses."""

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
        """Return whether the search of this sentence can end.

        Args:
            best_total: Log-probability of the best live hypothesis; -inf if there is none.
            length: Number of tokens of the live hypotheses.
        """
        if best_total == -math.inf:
            return True
        if len(self.finished) < self.beam.n_best:
            return False
        scores = sorted((hypothesis.score for hypothesis in self.finished), reverse=True)
        # A heuristic, since the score of a live hypothesis can still rise. It does not depend on n_best, so that n_best
        # does not change the best hypothesis.
        if len(scores) >= self.beam.size and self.beam.score(best_total, length) <= scores[0]:
            return True
        # An exact bound, but not for scores with coverage: the penalties are only added after the search.
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
    """Add the finished and the cut hypotheses to `sentences`, each of which has a limit of at least one token.

    The host keeps the tokens of all live hypotheses in arrays (N, H, t): N live sentences, H hypotheses of each (one
    before the first step), t tokens.
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
        continuing = np.argsort(ends, axis=1, kind="stable")[:, :size]  # the first `size` that do not end
        ids, totals, parents = ids[slots, continuing], totals[slots, continuing], parents[slots, continuing]
        # (N, size): -inf for missing hypotheses, if fewer than `size` continue
        values = np.where(ends, -math.inf, values)[slots, continuing]

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
    """Add the weighted coverage penalty to the score of each hypothesis."""
    for kind in (sentence.finished, sentence.cut):
        if kind:
            targets = [(*sentence.prefix, *hypothesis.ids) for hypothesis in kind]
            penalties = coverage_penalties(model, sentence.source, targets)
            kind[:] = [
                replace(hypothesis, score=hypothesis.score + sentence.beam.coverage * penalty)
                for hypothesis, penalty in zip(kind, penalties, strict=True)
            ]


def _limit_per_sentence(limit: Sequence[int] | int, n: int) -> list[int]:
    """Return one limit per sentence."""
    numbers = [limit] * n if isinstance(limit, int) else list(limit)
    if len(numbers) != n:
        raise ValueError(f"expected {n} limits, one per prefix, got {len(numbers)}")
    if min(numbers, default=0) < 0:
        raise ValueError(f"max_new_tokens and min_new_tokens must be 0 or more, got {min(numbers)}")
    return numbers


def _check(
    model: AnyDecoder[CacheType],
    prefixes: Sequence[Sequence[int]],
    eos_id: int,
    forbidden: Set[int],
    sources: Sequence[Sequence[int]] | None,
) -> None:
    if eos_id in forbidden:
        raise ValueError(f"eos_id={eos_id} must not be forbidden, since no hypothesis could end; try min_new_tokens")
    if sources is not None and len(sources) != len(prefixes):
        raise ValueError(f"expected {len(prefixes)} sources, one per prefix, got {len(sources)}")
    for kind, rows in (("prefix", prefixes), ("source", sources or ())):
        for number, row in enumerate(rows, 1):
            if not 1 <= len(row) <= model.max_len:
                raise ValueError(
                    f"{kind} {number} of {len(rows)} has {len(row)} tokens; expected 1 to max_len={model.max_len}"
                )

"""Beam search matches exhaustive search and a plain implementation, and keeps each of its guarantees."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy_decoder import SourceRule, ToyDecoder, ToyTranslator, random_rule, random_source_rule, script_rule

from tercet.config import UserError
from tercet.generation import Beam, Hypothesis, Sampling, beam_search, stream
from tercet.generation import beam as beam_module

EOS, MAX_LEN = 2, 11
PENALTIES = [("average", 1.0), ("average", 0.6), ("average", 1.7), ("gnmt", 0.6), ("gnmt", 1.3), ("none", 1.0)]


def formula(beam: Beam, logprob: float, length: int) -> float:
    norms = {"average": length**beam.alpha, "gnmt": ((5 + length) / 6) ** beam.alpha, "none": 1.0}
    return logprob / norms[beam.length_penalty]


def forced_logprobs(rule: SourceRule, source: list[int], prefix: list[int], ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token of a given sequence."""
    row, logprobs = list(prefix), []
    for token in ids:
        logprobs.append(rule(source, row).double().log_softmax(-1)[token].item())
        row.append(token)
    return logprobs


def every_sequence(
    rule: SourceRule,
    source: list[int],
    prefix: list[int],
    beam: Beam,
    *,
    vocab_size: int,
    limit: int,
    shortest: int = 0,
) -> list[tuple[tuple[int, ...], float]]:
    """Return all allowed sequences: ended ones, then cut ones, both in the order of their scores."""
    complete, cut = [], []
    words = [token for token in range(vocab_size) if token != EOS]
    for length in range(limit + 1):
        for body in product(words, repeat=length):
            ids = (*body, EOS)
            if shortest <= length < limit:
                complete.append((ids, formula(beam, sum(forced_logprobs(rule, source, prefix, ids)), length + 1)))
            if length == limit:
                cut.append((body, formula(beam, sum(forced_logprobs(rule, source, prefix, body)), length)))
    return [pair for kind in (complete, cut) for pair in sorted(kind, key=lambda pair: -pair[1])]


def mismatches(models: int, *, n_best: int = 3, penalties: Sequence[tuple[Any, float]] = PENALTIES) -> int:
    """Count the random models for which a beam as large as the search space misses the best sequences."""
    n_wrong = 0
    for seed in range(models):
        vocab_size, limit = [(5, 3), (4, 4), (7, 2), (3, 4)][seed % 4]
        penalty, alpha = penalties[seed % len(penalties)]
        scale, shortest = [0.3, 1.0, 2.5][seed % 3], [0, 0, 1][seed // 3 % 3]
        beam = Beam(size=vocab_size**limit, n_best=n_best, length_penalty=penalty, alpha=alpha)
        rule = random_source_rule(vocab_size, MAX_LEN, seed=seed, scale=scale)
        source, prefix = [seed % vocab_size, 1, EOS][seed % 2 :], [1, 0][: 1 + seed % 2]
        model = ToyTranslator(rule, MAX_LEN, vocab_size)
        limits = {"max_new_tokens": limit, "min_new_tokens": shortest}
        (hypotheses,) = beam_search(model, [prefix], beam, eos_id=EOS, sources=[source], **limits)
        best = every_sequence(rule, source, prefix, beam, vocab_size=vocab_size, limit=limit, shortest=shortest)
        same_ids = [hypothesis.ids for hypothesis in hypotheses] == [ids for ids, _ in best[:n_best]]
        close = np.allclose(
            [hypothesis.score for hypothesis in hypotheses], [score for _, score in best[:n_best]], atol=1e-4
        )
        n_wrong += not (same_ids and close)
    return n_wrong


@pytest.mark.slow
def test_beam_as_large_as_the_space_finds_the_best_of_all_sequences() -> None:
    assert mismatches(96) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_beam_as_large_as_the_space_finds_the_best_by_each_penalty(penalty: tuple[Any, float]) -> None:
    assert mismatches(200, penalties=[penalty]) == 0


def test_length_without_the_end_token_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    score = Beam.score
    monkeypatch.setattr(Beam, "score", lambda self, logprob, length: score(self, logprob, max(1, length - 1)))
    assert mismatches(12) > 3


@pytest.mark.slow
def test_stopping_at_the_first_end_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    process = beam_module._Sentence.is_done
    monkeypatch.setattr(
        beam_module._Sentence,
        "is_done",
        lambda self, best, length: len(self.finished) >= self.beam.n_best or process(self, best, length),
    )
    assert mismatches(36) > 3


@pytest.mark.slow
def test_bound_without_the_length_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The score of a live hypothesis may rise; scoring it at its current length stops too early."""

    def is_done(self: Any, best_total: float, length: int) -> bool:
        if len(self.finished) < self.beam.n_best:
            return best_total == -math.inf
        return (
            self.beam.score(best_total, 1)
            <= sorted(hypothesis.score for hypothesis in self.finished)[-self.beam.n_best]
        )

    monkeypatch.setattr(beam_module._Sentence, "is_done", is_done)
    assert mismatches(36, n_best=1) > 0


def plain_search(
    rule: SourceRule, source: list[int], prefix: list[int], beam: Beam, *, limit: int, shortest: int
) -> list[tuple[tuple[int, ...], float]]:
    """Run the same search for one sentence and one hypothesis at a time, without a bound."""
    live: list[tuple[tuple[int, ...], np.float32]] = [((), np.float32(0))]
    complete: list[tuple[tuple[int, ...], float]] = []
    for length in range(1, limit + 1):
        candidates = []
        for place, (ids, total) in enumerate(live):
            logprobs = rule(source, [*prefix, *ids]).log_softmax(-1).numpy()
            for token, logprob in enumerate(logprobs):
                if token != EOS or length > shortest:
                    candidates.append((total + logprob, place, token))
        candidates.sort(key=lambda candidate: (-candidate[0], candidate[1], candidate[2]))
        following: list[tuple[tuple[int, ...], np.float32]] = []
        for rank, (total, place, token) in enumerate(candidates[: 2 * beam.size]):
            ids = (*live[place][0], token)
            if token != EOS:
                following.append((ids, total))
            elif rank < beam.size:
                complete.append((ids, formula(beam, float(total), len(ids))))
        live = following[: beam.size]
        best = sorted((score for _, score in complete), reverse=True)
        if len(complete) >= beam.size and live and formula(beam, float(live[0][1]), length) <= best[0]:
            live = []
        if not live:
            break
    cut = [(ids, formula(beam, float(total), len(ids))) for ids, total in live]
    sequences = sorted(complete, key=lambda pair: -pair[1]) + sorted(cut, key=lambda pair: -pair[1])
    return sequences[: beam.n_best]


def test_search_waits_for_a_likely_long_hypothesis() -> None:
    """Five unlikely short hypotheses end first; stopping there would return the best of them."""

    def sure(source: Sequence[int], tokens: Sequence[int]) -> Tensor:
        right = 3 if len(tokens) < 9 else EOS
        logits = torch.zeros(7)
        logits[EOS] = 4.0
        logits[right] = 12.0
        return logits

    model = ToyTranslator(sure, MAX_LEN, 7)
    (hypotheses,) = beam_search(model, [[1]], Beam(size=5), eos_id=EOS, sources=[[2]], max_new_tokens=11)
    (greedy,) = beam_search(model, [[1]], Beam(size=1), eos_id=EOS, sources=[[2]], max_new_tokens=11)
    assert hypotheses[0].ids == greedy[0].ids == (*[3] * 8, EOS)


def coarse(rule: SourceRule, step: float) -> SourceRule:
    """Round logits to a grid, so that many are equal."""
    return lambda source, tokens: (rule(source, tokens) / step).round() * step


searches = st.builds(
    lambda size, n_best, penalty: Beam(
        size=size, n_best=min(n_best, size), length_penalty=penalty[0], alpha=penalty[1]
    ),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(PENALTIES),
)
sentences = st.lists(
    st.tuples(
        st.lists(st.integers(0, 6), min_size=1, max_size=5),  # source
        st.lists(st.integers(0, 6), min_size=1, max_size=3),  # prefix
        st.integers(0, 12),  # maximum new tokens
        st.integers(0, 3),  # minimum new tokens
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(beam=searches, batch=sentences, seed=st.integers(0, 50), scale=st.sampled_from([0.5, 1.5, 4.0]))
def test_any_batch_matches_a_plain_search_of_each_sentence(
    beam: Beam, batch: list[tuple[list[int], list[int], int, int]], seed: int, scale: float
) -> None:
    rule = coarse(random_source_rule(7, MAX_LEN, seed=seed, scale=scale), 0.5)
    sources, prefixes, longest, fewest = (list(part) for part in zip(*batch, strict=True))
    model = ToyTranslator(rule, MAX_LEN, 7)
    limits: dict[str, Any] = {"max_new_tokens": longest, "min_new_tokens": fewest}
    with pytest.MonkeyPatch.context() as patch:
        # the kernel's logarithms are rounded differently
        patch.setattr("tercet.kernel.api.supports_scores", lambda scores: False)
        found = beam_search(model, prefixes, beam, eos_id=EOS, sources=sources, **limits)
    for (source, prefix, limit, shortest), hypotheses in zip(batch, found, strict=True):
        limit = min(limit, MAX_LEN + 1 - len(prefix))
        if limit == 0:
            assert [(hypothesis.ids, hypothesis.score, hypothesis.finish) for hypothesis in hypotheses] == [
                ((), 0.0, "length")
            ]
            continue
        expected = plain_search(rule, source, prefix, beam, limit=limit, shortest=shortest)
        assert [(hypothesis.ids, hypothesis.score) for hypothesis in hypotheses] == expected
        assert [hypothesis.finish for hypothesis in hypotheses] == [
            "eos" if ids[-1] == EOS else "length" for ids, _ in expected
        ]


RULE = random_source_rule(7, 30, seed=3, scale=1.0)
SOURCES = [[3, 2], [4, 5, 6, 2], [1, 1, 2], [2], [6, 5, 4, 3, 2]]
PREFIXES = [[1], [1, 4], [1], [1, 0, 0], [1]]


def search(beam: Beam, numbers: Sequence[int] = range(5), **limits: Any) -> list[list[Hypothesis]]:
    model = ToyTranslator(RULE, 30, 7)
    prefixes, sources = [PREFIXES[number] for number in numbers], [SOURCES[number] for number in numbers]
    limits = {"max_new_tokens": 20, **limits}
    return beam_search(model, prefixes, beam, eos_id=EOS, sources=sources, **limits)


@pytest.mark.parametrize(("penalty", "alpha"), PENALTIES)
def test_scores_match_the_formula_with_forced_decoding(penalty: Any, alpha: float) -> None:
    beam = Beam(size=6, n_best=6, length_penalty=penalty, alpha=alpha)
    for number, hypotheses in enumerate(search(beam)):
        for hypothesis in hypotheses:
            logprobs = forced_logprobs(RULE, SOURCES[number], PREFIXES[number], hypothesis.ids)
            assert hypothesis.logprobs == pytest.approx(logprobs, abs=1e-4)
            assert hypothesis.logprob == pytest.approx(sum(logprobs), abs=1e-4)
            assert hypothesis.score == pytest.approx(formula(beam, sum(logprobs), len(hypothesis.ids)), abs=1e-4)


@pytest.mark.parametrize(("penalty", "alpha"), PENALTIES)
def test_lists_are_finite_sorted_distinct_and_extend_shorter_lists(penalty: Any, alpha: float) -> None:
    beam = Beam(size=6, length_penalty=penalty, alpha=alpha)
    longest = search(replace(beam, n_best=6), max_new_tokens=5)
    assert {hypothesis.finish for hypotheses in longest for hypothesis in hypotheses} == {"eos", "length"}
    for hypotheses in longest:
        assert len(hypotheses) == 6
        assert len({hypothesis.ids for hypothesis in hypotheses}) == 6
        order = [(hypothesis.finish == "length", -hypothesis.score) for hypothesis in hypotheses]
        assert order == sorted(order)
        assert all(EOS not in hypothesis.ids[:-1] for hypothesis in hypotheses)
        assert all((hypothesis.ids[-1] == EOS) == (hypothesis.finish == "eos") for hypothesis in hypotheses)
        assert all(hypothesis.finish == "eos" or len(hypothesis.ids) == 5 for hypothesis in hypotheses)
    for n_best in range(1, 6):
        fewer = search(replace(beam, n_best=n_best), max_new_tokens=5)
        assert fewer == [hypotheses[:n_best] for hypotheses in longest]


@pytest.mark.slow
def test_best_of_five_equals_best_of_one() -> None:
    """Also if the score of a hypothesis rises after `size` hypotheses have ended."""
    for seed in range(30):
        model = ToyTranslator(random_source_rule(7, MAX_LEN, seed=seed, scale=1.5), MAX_LEN, 7)
        five_best, best = (
            beam_search(model, [[1]], Beam(size=5, n_best=n), eos_id=EOS, sources=[[2, 3]], max_new_tokens=12)[0]
            for n in (5, 1)
        )
        assert five_best[:1] == best


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(beam=searches, seed=st.integers(0, 500), limit=st.integers(1, 8), spare=st.integers(1, 15))
def test_unused_capacity_changes_nothing(beam: Beam, seed: int, limit: int, spare: int) -> None:
    rule = random_source_rule(7, 30, seed=seed, scale=1.5)

    def find(limit: int) -> list[Hypothesis]:
        model = ToyTranslator(rule, 30, 7)
        return beam_search(model, [[1]], beam, eos_id=EOS, sources=[[3, 2]], max_new_tokens=limit)[0]

    roomy = find(limit + spare)
    assume(all(hypothesis.finish == "eos" and len(hypothesis.ids) <= limit for hypothesis in roomy))
    assert find(limit) == roomy


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sentence_has_the_same_result_in_any_batch(size: int) -> None:
    beam = Beam(size=size, n_best=min(2, size))
    limits = [3, 20, 9, 1, 14]
    batched = search(beam, max_new_tokens=limits)
    assert batched == [search(beam, [number], max_new_tokens=limits[number])[0] for number in range(5)]
    backwards = search(beam, [4, 3, 2, 1, 0], max_new_tokens=limits[::-1])
    assert batched == backwards[::-1]
    results = search(beam, [1, 1, 4, 1], max_new_tokens=20)
    assert results[0] == results[1] == results[3]


def test_size_one_is_greedy() -> None:
    for seed in range(20):
        rule = random_rule(7, MAX_LEN, seed=seed)
        (hypothesis,) = beam_search(ToyDecoder(rule, MAX_LEN), [[1, 3]], Beam(size=1), eos_id=EOS, max_new_tokens=9)[0]
        greedy = Sampling(temperature=0, max_new_tokens=9)
        tokens = [token for (token,) in stream(ToyDecoder(rule, MAX_LEN), [[1, 3]], greedy, stop_ids={EOS}) if token]
        assert hypothesis.ids == tuple(token.id for token in tokens)
        assert hypothesis.finish == tokens[-1].finish
        assert hypothesis.logprobs == pytest.approx([token.logprob for token in tokens], abs=1e-5)


def test_greedy_ties_take_the_lowest_id() -> None:
    model = ToyDecoder(lambda tokens: torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0]), MAX_LEN)
    (hypothesis,) = beam_search(model, [[1]], Beam(size=1), eos_id=EOS, max_new_tokens=3)[0]
    assert hypothesis.ids == (1, 1, 1)


def test_end_is_forbidden_only_before_the_minimum_length() -> None:
    model = ToyDecoder(script_rule(7, [EOS] * 9), MAX_LEN)
    for shortest in range(5):
        limits = {"max_new_tokens": 6, "min_new_tokens": shortest}
        (hypothesis,) = beam_search(model, [[1]], Beam(size=3), eos_id=EOS, **limits)[0]
        assert (len(hypothesis.ids), hypothesis.ids[-1], hypothesis.finish) == (shortest + 1, EOS, "eos")
    hypotheses = beam_search(model, [[1]], Beam(size=3), eos_id=EOS, max_new_tokens=3, min_new_tokens=3)[0]
    assert [(len(hypothesis.ids), hypothesis.finish) for hypothesis in hypotheses] == [(3, "length")]


def test_no_end_is_added_at_the_limit_but_a_last_end_counts() -> None:
    for script, finish in (([5, 6, 4], "length"), ([5, 6, EOS], "eos")):
        model = ToyDecoder(script_rule(7, script), MAX_LEN)
        (hypothesis,) = beam_search(model, [[1]], Beam(size=3), eos_id=EOS, max_new_tokens=3)[0]
        assert (hypothesis.ids, hypothesis.finish) == (tuple(script), finish)


def test_ended_hypothesis_ranks_before_a_likelier_cut_one() -> None:
    logits = torch.tensor([5.0, -9.0, 1.0, -9.0])
    model = ToyDecoder(lambda tokens: logits, MAX_LEN)
    hypotheses = beam_search(model, [[1]], Beam(size=2, n_best=2), eos_id=EOS, max_new_tokens=1)[0]
    assert [(hypothesis.ids, hypothesis.finish) for hypothesis in hypotheses] == [((EOS,), "eos"), ((0,), "length")]
    assert hypotheses[0].score < hypotheses[1].score


def test_ended_hypothesis_leaves_the_beam_and_ends_below_it_are_dropped() -> None:
    """With size 2, the end is only third at first, so it does not count, although it is likelier than later ends."""
    first_logits, later_logits = torch.tensor([0.2, 0.1, 0.0, -9.0]), torch.tensor([-9.0, -9.0, 9.0, 9.0])
    model = ToyDecoder(lambda tokens: first_logits if len(tokens) == 1 else later_logits, MAX_LEN)
    beam = Beam(size=2, n_best=2, length_penalty="none")
    hypotheses = beam_search(model, [[1]], beam, eos_id=EOS, max_new_tokens=5)[0]
    assert [hypothesis.ids for hypothesis in hypotheses] == [(0, EOS), (0, 3, EOS)]
    assert model.calls == [("start", 1), ("step", 2), ("step", 2)]


def test_several_hypotheses_end_at_once_and_the_beam_stays_full() -> None:
    """Two of three end in the second step. Their best continuations are third and fifth, and must be kept."""
    table = torch.full((9, 9), -60.0)
    table[1, [3, 4, 5]] = torch.tensor([0.0, -0.1, -0.2])
    table[3, [EOS, 6]] = torch.tensor([0.0, -3.0])
    table[4, [EOS, 8]] = torch.tensor([0.0, -4.0])
    table[5, 7] = 0.0
    table[[6, 7], 0] = 0.0  # these never end
    table[8, EOS] = 0.0
    model = ToyDecoder(lambda tokens: table[tokens[-1]], MAX_LEN)
    hypotheses = beam_search(model, [[1]], Beam(size=3, n_best=3), eos_id=EOS, max_new_tokens=3)[0]
    assert [hypothesis.ids for hypothesis in hypotheses] == [(3, EOS), (4, EOS), (4, 8, EOS)]


def test_finished_sentences_leave_in_whole_groups() -> None:
    scripts = {3: [5, EOS], 4: [5, 6, 5, EOS], 5: [EOS]}

    def rule(source: list[int], tokens: list[int]) -> torch.Tensor:
        return script_rule(7, [*scripts[source[0]], *[EOS] * 9])(tokens)

    model = ToyTranslator(rule, MAX_LEN, 7)
    sources = [[3, EOS], [4, 4, 4, EOS], [5, EOS]]
    results = beam_search(model, [[1]] * 3, Beam(size=3), eos_id=EOS, sources=sources, max_new_tokens=8)
    assert [hypothesis.ids for (hypothesis,) in results] == [(5, EOS), (5, 6, 5, EOS), (EOS,)]
    assert model.calls == [("start", 3), ("step", 6), ("step", 3), ("step", 3)]
    assert model.caches[0].calls[:2] == [("reorder", 2), ("expand_beams", 3)]
    assert model.sources == [sources]


def test_rows_that_stay_in_place_are_not_moved() -> None:
    table = torch.full((7, 7), -60.0)
    for token, following in ((1, 3), (3, 4), (4, 3)):  # the two hypotheses stay apart, with one next token each
        table[token, following] = 0.0
    table[1, 5], table[5, 6], table[6, 5] = -1.0, 0.0, 0.0
    model = ToyDecoder(lambda tokens: table[tokens[-1]], MAX_LEN)
    hypotheses = beam_search(model, [[1]], Beam(size=2, n_best=2), eos_id=EOS, max_new_tokens=7)[0]
    assert [hypothesis.ids for hypothesis in hypotheses] == [(3, 4, 3, 4, 3, 4, 3), (5, 6, 5, 6, 5, 6, 5)]
    assert model.caches[0].calls == [("expand_beams", 2)]
    greedy = ToyDecoder(lambda tokens: table[tokens[-1]], MAX_LEN)
    beam_search(greedy, [[1]], Beam(size=1), eos_id=EOS, max_new_tokens=7)
    assert greedy.caches[0].calls == []


def test_cache_starts_small_and_grows_as_needed() -> None:
    model = ToyDecoder(lambda tokens: torch.zeros(5), 100)
    beam_search(model, [[1], [1, 1, 1]], Beam(size=1), eos_id=EOS, max_new_tokens=40)
    assert model.capacities == [11]
    assert model.caches[0].calls == [("grow", 19), ("grow", 27), ("grow", 35), ("grow", 42)]
    short = ToyDecoder(lambda tokens: torch.zeros(5), 100)
    beam_search(short, [[1], [1, 1, 1]], Beam(size=1), eos_id=EOS, max_new_tokens=[7, 2])
    assert short.capacities == [7]


def test_context_is_filled_to_its_end_and_no_further() -> None:
    model = ToyDecoder(lambda tokens: torch.zeros(5), MAX_LEN)
    prefixes = [[1], [1] * (MAX_LEN - 1), [1] * MAX_LEN]
    results = beam_search(model, prefixes, Beam(size=2), eos_id=EOS, max_new_tokens=99, min_new_tokens=99)
    assert [len(hypothesis.ids) for (hypothesis,) in results] == [MAX_LEN, 2, 1]


@pytest.mark.parametrize("has_kernel", [True, False])
def test_forbidden_tokens_are_never_generated_and_probabilities_are_unchanged(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernel:
        monkeypatch.setattr("tercet.kernel.api.supports_scores", lambda scores: False)
    model = ToyTranslator(RULE, 30, 7)
    beam = Beam(size=5, n_best=5)
    limits = {"eos_id": EOS, "max_new_tokens": 12}
    free = beam_search(model, [[1]], beam, sources=[[3, 2]], **limits)[0]
    forbidden = {free[0].ids[0], 0}
    assert EOS not in forbidden
    hypotheses = beam_search(model, [[1]], beam, sources=[[3, 2]], forbidden=forbidden, **limits)[0]
    for hypothesis in hypotheses:
        assert not forbidden & set(hypothesis.ids)
        assert hypothesis.logprobs == pytest.approx(forced_logprobs(RULE, [3, 2], [1], hypothesis.ids), abs=1e-4)


def test_only_the_end_allowed_gives_one_hypothesis() -> None:
    model = ToyDecoder(lambda tokens: torch.zeros(5), MAX_LEN)
    forbidden = {0, 1, 3, 4}
    limits = {"eos_id": EOS, "forbidden": forbidden, "max_new_tokens": 4}
    assert [hypothesis.ids for hypothesis in beam_search(model, [[1]], Beam(size=3, n_best=3), **limits)[0]] == [(EOS,)]
    assert beam_search(model, [[1]], Beam(size=3), min_new_tokens=1, **limits)[0] == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("size", [1, 3])
def test_non_finite_outputs_are_reported(value: float, size: int) -> None:
    def rule(tokens: list[int]) -> torch.Tensor:
        logits = torch.arange(200.0)
        if len(tokens) == 4:
            logits[77] = value
        return logits

    with pytest.raises(UserError, match="diverged"):
        beam_search(ToyDecoder(rule, MAX_LEN), [[1], [1]], Beam(size=size), eos_id=EOS, max_new_tokens=6)


def test_minus_infinity_logits_are_allowed() -> None:
    logits = torch.tensor([-math.inf, 0.0, 1.0, -math.inf])
    hypotheses = beam_search(
        ToyDecoder(lambda tokens: logits, MAX_LEN), [[1]], Beam(size=4, n_best=4), eos_id=EOS, max_new_tokens=2
    )[0]
    assert [hypothesis.ids for hypothesis in hypotheses] == [(EOS,), (1, EOS), (1, 1)]


def test_logits_of_the_model_are_not_modified() -> None:
    logits = torch.zeros(1, 5)
    model = ToyDecoder(lambda tokens: logits[0], MAX_LEN)
    model._logits = lambda cache: logits.expand(len(cache.rows), -1)  # type: ignore[method-assign]
    beam_search(model, [[1]], Beam(size=2), eos_id=EOS, forbidden={0}, max_new_tokens=3, min_new_tokens=2)
    assert torch.equal(logits, torch.zeros(1, 5))


def test_mode_of_the_model_is_restored() -> None:
    model = ToyDecoder(random_rule(7, MAX_LEN), MAX_LEN).train()
    beam_search(model, [[1]], Beam(), eos_id=EOS, max_new_tokens=5)
    assert model.training
    assert not torch.is_inference_mode_enabled()


def test_empty_input_gives_no_output() -> None:
    model = ToyDecoder(random_rule(7, MAX_LEN), MAX_LEN)
    assert beam_search(model, [], Beam(), eos_id=EOS, max_new_tokens=5) == []
    assert beam_search(model, [[1]], Beam(), eos_id=EOS, max_new_tokens=0)[0][0].ids == ()
    assert model.calls == []

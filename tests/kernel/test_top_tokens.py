"""The compiled top-k search finds what a full sort finds, and beam search gives the same results with it."""

import math
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.generation import Beam, beam_search
from tercet.generation import beam_decoding as module
from tercet.kernel.beam import supports_scores, top_tokens
from tercet.kernel.build import library
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")


@pytest.mark.slow
@settings(max_examples=50)
@given(
    n=st.integers(1, 3),
    h=st.integers(1, 5),
    v=st.sampled_from([1, 2, 7, 8, 9, 64, 130, 331]),
    count=st.integers(1, 12),
    levels=st.sampled_from([1, 2, 5, 1000]),
    gaps=st.integers(0, 9),
    seed=st.integers(0, 2**32),
)
def test_best_tokens_match_a_full_sort(n: int, h: int, v: int, count: int, levels: int, gaps: int, seed: int) -> None:
    torch.manual_seed(seed)
    scores = (torch.randint(levels, (n * h, v + gaps)).float() / 3)[:, :v]
    totals = -torch.randint(5, (n, h)).float()
    totals[torch.rand(n, h) < 0.2] = -math.inf
    forbidden, is_early, eos_id = torch.randperm(v)[: min(2, v - 1)], torch.rand(n) < 0.4, int(torch.randint(v, ()))
    values, parents, tokens = top_tokens(scores, totals, count, forbidden=forbidden, eos_id=eos_id, is_early=is_early)

    logprobs = scores.double().log_softmax(-1).unflatten(0, (n, h))
    logprobs[..., forbidden] = -math.inf
    logprobs[is_early, :, eos_id] = -math.inf
    sums = (logprobs + totals[..., None]).flatten(1)
    expected = torch.cat((sums, torch.full((n, count), -math.inf)), dim=1).topk(count).values
    torch.testing.assert_close(values.double(), expected, atol=1e-5, rtol=1e-6)
    is_candidate = values > -math.inf
    torch.testing.assert_close(
        sums.gather(1, parents * v + tokens)[is_candidate], values.double()[is_candidate], atol=1e-5, rtol=1e-6
    )
    for row in range(n):
        found = [(-values[row, i].item(), parents[row, i].item(), tokens[row, i].item()) for i in range(count)]
        found = [candidate for candidate in found if candidate[0] < math.inf]
        assert found == sorted(set(found))  # no duplicates, and ties are ordered by the lowest index


@pytest.mark.parametrize("place", [0, 70, 199])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_scores_are_not_hidden_and_stay_in_their_sentence(place: int, value: float) -> None:
    scores = torch.rand(6, 200)
    scores[3, place] = value
    values, _, _ = top_tokens(
        scores, torch.zeros(3, 2), 4, forbidden=torch.tensor([5]), eos_id=0, is_early=torch.zeros(3, dtype=torch.bool)
    )
    assert values.isnan().all(-1).tolist() == [False, True, False]


def test_sentence_does_not_depend_on_other_sentences_or_threads() -> None:
    scores, totals, threads = torch.randn(40, 3001), torch.randn(8, 5), torch.get_num_threads()

    def best(first: int, last: int) -> list[Any]:
        no_constraints = torch.zeros(0, dtype=torch.long), torch.zeros(last - first, dtype=torch.bool)
        tensors = top_tokens(
            scores[5 * first : 5 * last],
            totals[first:last],
            10,
            forbidden=no_constraints[0],
            eos_id=0,
            is_early=no_constraints[1],
        )
        return [tensor.tolist() for tensor in tensors]

    whole = best(0, 8)
    assert best(3, 4) == [part[3:4] for part in whole]
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert best(0, 8) == whole
    finally:
        torch.set_num_threads(threads)


def test_kernel_supports_float32_scores_on_a_cpu() -> None:
    scores = torch.randn(4, 9)
    assert supports_scores(scores)
    assert supports_scores(scores[:, :7])
    assert not supports_scores(scores.bfloat16())
    assert not supports_scores(scores[:, ::2])
    assert not supports_scores(scores.requires_grad_())


@pytest.mark.slow
def test_beam_search_is_the_same_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DecoderOnlySpec(vocab_size=97, max_len=24, stack=StackSpec(d_model=32, n_layers=2, n_heads=2))
    model = DecoderOnly(spec, seed=3)
    with torch.no_grad():
        model.embedding.weight *= 30
    prompts = [[1, 2, 3], [4], [5, 6]]
    options: dict[str, Any] = {"eos_id": 9, "forbidden": {0, 7}, "max_new_tokens": 12, "min_new_tokens": [0, 3, 6]}
    calls: list[int] = []
    monkeypatch.setattr(module, "top_tokens", lambda *args, **kwargs: calls.append(1) or top_tokens(*args, **kwargs))
    for beam in (Beam(size=1), Beam(size=4, n_best=4)):
        calls.clear()
        with_kernel = beam_search(model, prompts, beam, **options)
        assert calls
        with monkeypatch.context() as patch:
            patch.setattr("tercet.kernel.api.supports_scores", lambda scores: False)
            without_kernel = beam_search(model, prompts, beam, **options)
        assert [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in with_kernel] == [
            [hypothesis.ids for hypothesis in hypotheses] for hypotheses in without_kernel
        ]
        for hypothesis, reference in zip(chain(*with_kernel), chain(*without_kernel), strict=True):
            np.testing.assert_allclose(hypothesis.logprobs, reference.logprobs, atol=2e-5)
        with torch.no_grad():
            broken_model = DecoderOnly(spec, seed=3)
            broken_model.stack.final_norm.weight.fill_(math.nan)
        with pytest.raises(UserError, match="not numbers"):
            beam_search(broken_model, prompts, beam, **options)

import itertools
import math

import pytest
import torch
from torch import Tensor
from toy_decoder import ToyTranslator, random_source_rule

from sampled_cases import sampled
from tercet.generation import (
    Beam,
    Ensemble,
    Hypothesis,
    align,
    beam_search,
    cross_attention,
    word_alignment,
    words_of,
)
from tercet.generation.alignment import coverage_penalties
from tercet.models import EncoderDecoder, EncoderDecoderSpec, StackSpec

V, BOS, EOS = 13, 1, 2
SOURCES = [[3, 4, 5, 6, EOS], [7, EOS], [8, 9, 10, EOS]]


def model(seed: int = 0, *, n_layers: int = 3, n_kv_heads: int | None = None) -> EncoderDecoder:
    stack = StackSpec(d_model=24, n_layers=n_layers, n_heads=4, n_kv_heads=n_kv_heads, d_ff=31)
    translator = EncoderDecoder(EncoderDecoderSpec(vocab_size=V, max_len=17, encoder=stack, decoder=stack), seed=seed)
    with torch.no_grad():
        for parameter in translator.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return translator.eval()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([len(source) for source in SOURCES])
    source = torch.tensor([[*source, *[0] * (5 - len(source))] for source in SOURCES])
    return source, torch.randint(3, V, (3, 7)), torch.arange(5) < lengths[:, None]


@pytest.mark.parametrize("n_kv_heads", [None, 2])
def test_weights_are_distributions_over_the_real_source(n_kv_heads: int | None) -> None:
    translator = model(n_kv_heads=n_kv_heads)
    source, target, token_mask = batch()
    weights = cross_attention(translator, source, target, token_mask)
    assert weights.shape == (3, 3, 4, 7, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 3, 4, 7))
    assert (weights[:, ~token_mask[:, None, None].expand(3, 4, 7, 5)] == 0).all()
    for row, tokens in enumerate(SOURCES):
        separate = cross_attention(translator, torch.tensor([tokens]), target[[row]])
        torch.testing.assert_close(weights[:, [row], :, :, : len(tokens)], separate, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_weights_reproduce_the_output() -> None:
    """The last layer's output, computed by hand from the weights, equals its module's output."""
    translator = model()
    source, target, token_mask = batch()
    attention, tensors = translator.decoder.blocks[-1].cross_attention, {}
    hook = attention.register_forward_hook(
        lambda part, args, named, out: tensors.update(memory=named["source"], out=out), with_kwargs=True
    )
    weights = cross_attention(translator, source, target, token_mask)[-1]
    hook.remove()
    _, values = attention.keys_values(tensors["memory"])
    by_hand = attention.out((weights @ values).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(by_hand, tensors["out"], atol=1e-5, rtol=1e-4)


def test_later_target_tokens_and_padding_change_nothing() -> None:
    translator = model()
    source, target, token_mask = batch()
    weights = cross_attention(translator, source, target, token_mask)
    target[:, 4:] = 0
    torch.testing.assert_close(
        cross_attention(translator, source, target, token_mask)[:, :, :, :4], weights[:, :, :, :4]
    )


def test_model_is_unchanged_even_after_an_error() -> None:
    translator = model().train()
    source, target, token_mask = batch()
    cross_attention(translator, source, target, token_mask)
    with pytest.raises(ValueError, match="do not fit into the context"):
        cross_attention(translator, source, torch.ones(3, 18, dtype=torch.long), token_mask)
    assert translator.training
    assert not any(part._forward_pre_hooks for part in translator.modules())


def test_align_takes_the_maximum_of_the_penultimate_layer() -> None:
    weights = torch.zeros(3, 2, 4, 5)
    for layer in range(3):
        for token in range(4):
            weights[layer, :, token, (token + layer) % 5] = 1.0
    assert align(weights) == [1, 2, 3, 4]
    assert align(weights, layer=2) == [2, 3, 4, 0]
    assert align(weights[:1]) == [0, 1, 2, 3]
    weights[1, 0, 0, 3] = 2.5  # one of two heads has a larger weight elsewhere
    assert align(weights)[0] == 3


def test_words_take_the_sum_of_their_tokens_weights() -> None:
    weights = torch.zeros(1, 1, 3, 4)
    weights[0, 0] = torch.tensor([[0.4, 0.3, 0.3, 0.0], [0.0, 0.3, 0.3, 0.4], [0.1, 0.1, 0.1, 0.7]])
    source_words, target_words = [range(1), range(1, 3), range(3, 4)], [range(1), range(1, 3)]
    assert align(weights) == [0, 3, 3]
    assert word_alignment(weights, source_words, target_words) == [1, 2]


def test_words_start_at_white_space() -> None:
    assert words_of(["Zwei", " jun", "ge", " Männer", "."]) == [range(1), range(1, 3), range(3, 5)]
    assert words_of(["a", " ", "b", "c ", "d"]) == [range(1), range(1, 4), range(4, 5)]
    assert words_of([" ", " a", "b"]) == [range(3)]
    assert words_of([]) == []


def penalty_by_hand(translator: EncoderDecoder, source: list[int], target: list[int]) -> float:
    weights = cross_attention(translator, torch.tensor([source]), torch.tensor([target[:-1]]))[-1, 0].mean(0)
    return sum(math.log(min(column.sum().item(), 1.0)) for column in weights.T)


@pytest.mark.slow
def test_penalty_matches_the_formula() -> None:
    translator = model()
    targets = [[BOS, 5, 6, EOS], [BOS, 7, EOS], [BOS, 3, 4, 5, 6, 7, 8, EOS]]
    penalties = coverage_penalties(translator, SOURCES[0], targets)
    assert penalties == pytest.approx([penalty_by_hand(translator, SOURCES[0], target) for target in targets], abs=1e-4)
    assert all(penalty <= 0 for penalty in penalties)
    assert penalties[0] < penalties[2]  # a longer target attends to more of the source
    other_translator = model(seed=5, n_layers=2)
    ensemble_penalties = coverage_penalties(Ensemble([translator, other_translator]), SOURCES[0], targets)
    assert ensemble_penalties != pytest.approx(penalties)
    assert coverage_penalties(Ensemble([translator, translator]), SOURCES[0], targets) == pytest.approx(
        penalties, abs=1e-5
    )


def rank_by_hand(
    translator: EncoderDecoder, source: list[int], prefix: list[int], hypothesis: Hypothesis
) -> tuple[bool, float]:
    """Return whether it has ended, and its score with alpha 0.5 and coverage 0.7."""
    penalty = penalty_by_hand(translator, source, [*prefix, *hypothesis.ids])
    return hypothesis.ids[-1] == EOS, hypothesis.logprob / len(hypothesis.ids) ** 0.5 + 0.7 * penalty


@pytest.mark.slow
@pytest.mark.parametrize("n_best", sampled([4, 1]))
def test_coverage_ranks_ended_and_cut_hypotheses_again(n_best: int) -> None:
    torch.manual_seed(0)  # some hypotheses of this model end within the limit and others do not
    translator, prefixes = model(seed=4), [[BOS], [BOS, 5], [BOS]]
    limits = {"eos_id": EOS, "sources": SOURCES, "max_new_tokens": 7}
    plain = beam_search(translator, prefixes, Beam(size=4, n_best=4, alpha=0.5), **limits)
    with_coverage = beam_search(translator, prefixes, Beam(size=4, n_best=n_best, alpha=0.5, coverage=0.7), **limits)
    assert n_best == 1 or {hypothesis.finish for hypotheses in with_coverage for hypothesis in hypotheses} == {
        "eos",
        "length",
    }
    for prefix, source, before, after in zip(prefixes, SOURCES, plain, with_coverage, strict=True):
        ranks = [rank_by_hand(translator, source, prefix, hypothesis) for hypothesis in after]
        assert len(after) == n_best
        assert [hypothesis.score for hypothesis in after] == pytest.approx([score for _, score in ranks], abs=1e-4)
        for rank, following in itertools.pairwise(ranks):
            assert rank[0] > following[0] or (rank[0] == following[0] and rank[1] >= following[1] - 1e-4)
        chosen_ids = {hypothesis.ids for hypothesis in after}
        for hypothesis in before:  # hypotheses that are missing with coverage rank no better than the last of these
            is_ended, score = rank_by_hand(translator, source, prefix, hypothesis)
            assert hypothesis.ids in chosen_ids or (is_ended, score) <= (ranks[-1][0], ranks[-1][1] + 1e-4)
    assert [[hypothesis.ids for hypothesis in hypotheses[:n_best]] for hypotheses in plain] != [
        [hypothesis.ids for hypothesis in hypotheses] for hypotheses in with_coverage
    ]


@pytest.mark.slow
def test_coverage_lowers_the_scores_of_cut_hypotheses() -> None:
    translator, source = model(), SOURCES[0]  # longer than the output, so that part of it gets no attention
    limits = {"eos_id": EOS, "sources": [source], "max_new_tokens": 3, "min_new_tokens": 3}
    hypotheses = beam_search(translator, [[BOS]], Beam(size=3, n_best=3, alpha=0.5, coverage=0.7), **limits)[0]
    assert [hypothesis.finish for hypothesis in hypotheses] == ["length"] * 3
    assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
        [rank_by_hand(translator, source, [BOS], hypothesis)[1] for hypothesis in hypotheses], abs=1e-4
    )
    assert all(penalty_by_hand(translator, source, [BOS, *hypothesis.ids]) < -0.1 for hypothesis in hypotheses)


def test_coverage_needs_cross_attention() -> None:
    toy = ToyTranslator(random_source_rule(V, 17), 17, V)
    with pytest.raises(ValueError, match="coverage requires a model with cross-attention, not ToyTranslator; set it"):
        beam_search(toy, [[BOS]], Beam(coverage=0.2), eos_id=EOS, sources=[[EOS]], max_new_tokens=4)

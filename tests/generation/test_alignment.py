import itertools
import math

import pytest
import torch
from torch import Tensor
from toy_decoder import ToyTranslator, random_source_rule

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
    made = EncoderDecoder(EncoderDecoderSpec(vocab_size=V, max_len=17, encoder=stack, decoder=stack), seed=seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.eval()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([len(source) for source in SOURCES])
    source = torch.tensor([[*source, *[0] * (5 - len(source))] for source in SOURCES])
    return source, torch.randint(3, V, (3, 7)), torch.arange(5) < lengths[:, None]


@pytest.mark.parametrize("n_kv_heads", [None, 2])
def test_weights_are_distributions_over_the_real_source(n_kv_heads: int | None) -> None:
    made = model(n_kv_heads=n_kv_heads)
    source, target, token_mask = batch()
    weights = cross_attention(made, source, target, token_mask)
    assert weights.shape == (3, 3, 4, 7, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 3, 4, 7))
    assert (weights[:, ~token_mask[:, None, None].expand(3, 4, 7, 5)] == 0).all()
    for row, tokens in enumerate(SOURCES):
        separate = cross_attention(made, torch.tensor([tokens]), target[[row]])
        torch.testing.assert_close(weights[:, [row], :, :, : len(tokens)], separate, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_weights_reproduce_the_output() -> None:
    """The last layer's output, computed by hand from the weights, equals its module's output."""
    made = model()
    source, target, token_mask = batch()
    attention, seen = made.decoder.blocks[-1].cross_attention, {}
    hook = attention.register_forward_hook(lambda part, args, out: seen.update(memory=args[1], out=out))
    weights = cross_attention(made, source, target, token_mask)[-1]
    hook.remove()
    _, values = attention.keys_values(seen["memory"])
    by_hand = attention.out((weights @ values).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(by_hand, seen["out"], atol=1e-5, rtol=1e-4)


def test_later_target_tokens_and_padding_change_nothing() -> None:
    made = model()
    source, target, token_mask = batch()
    weights = cross_attention(made, source, target, token_mask)
    target[:, 4:] = 0
    torch.testing.assert_close(cross_attention(made, source, target, token_mask)[:, :, :, :4], weights[:, :, :, :4])


def test_model_is_unchanged_even_after_an_error() -> None:
    made = model().train()
    source, target, token_mask = batch()
    cross_attention(made, source, target, token_mask)
    with pytest.raises(ValueError, match="do not fit into the context"):
        cross_attention(made, source, torch.ones(3, 18, dtype=torch.long), token_mask)
    assert made.training
    assert not any(part._forward_pre_hooks for part in made.modules())


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


def penalty_by_hand(made: EncoderDecoder, source: list[int], target: list[int]) -> float:
    weights = cross_attention(made, torch.tensor([source]), torch.tensor([target[:-1]]))[-1, 0].mean(0)
    return sum(math.log(min(column.sum().item(), 1.0)) for column in weights.T)


@pytest.mark.slow
def test_penalty_matches_the_formula() -> None:
    made = model()
    targets = [[BOS, 5, 6, EOS], [BOS, 7, EOS], [BOS, 3, 4, 5, 6, 7, 8, EOS]]
    found = coverage_penalties(made, SOURCES[0], targets)
    assert found == pytest.approx([penalty_by_hand(made, SOURCES[0], target) for target in targets], abs=1e-4)
    assert all(penalty <= 0 for penalty in found)
    assert found[0] < found[2]  # a longer target attends to more of the source
    other = model(seed=5, n_layers=2)
    both = coverage_penalties(Ensemble([made, other]), SOURCES[0], targets)
    assert both != pytest.approx(found)
    assert coverage_penalties(Ensemble([made, made]), SOURCES[0], targets) == pytest.approx(found, abs=1e-5)


def rank_by_hand(made: EncoderDecoder, source: list[int], prefix: list[int], one: Hypothesis) -> tuple[bool, float]:
    """Return whether it has ended, and its score with alpha 0.5 and coverage 0.7."""
    penalty = penalty_by_hand(made, source, [*prefix, *one.ids])
    return one.ids[-1] == EOS, one.logprob / len(one.ids) ** 0.5 + 0.7 * penalty


@pytest.mark.slow
@pytest.mark.parametrize("n_best", [1, 4])
def test_coverage_ranks_ended_and_cut_hypotheses_again(n_best: int) -> None:
    torch.manual_seed(0)  # some hypotheses of this model end within the limit and others do not
    made, prefixes = model(seed=4), [[BOS], [BOS, 5], [BOS]]
    limits = {"eos_id": EOS, "sources": SOURCES, "max_new_tokens": 7}
    plain = beam_search(made, prefixes, Beam(size=4, n_best=4, alpha=0.5), **limits)
    weighed = beam_search(made, prefixes, Beam(size=4, n_best=n_best, alpha=0.5, coverage=0.7), **limits)
    assert n_best == 1 or {one.finish for hypotheses in weighed for one in hypotheses} == {"eos", "length"}
    for prefix, source, before, after in zip(prefixes, SOURCES, plain, weighed, strict=True):
        ranks = [rank_by_hand(made, source, prefix, one) for one in after]
        assert len(after) == n_best
        assert [one.score for one in after] == pytest.approx([score for _, score in ranks], abs=1e-4)
        for one, following in itertools.pairwise(ranks):
            assert one[0] > following[0] or (one[0] == following[0] and one[1] >= following[1] - 1e-4)
        chosen = {one.ids for one in after}
        for one in before:  # hypotheses that are missing with coverage rank no better than the last of these
            ended, score = rank_by_hand(made, source, prefix, one)
            assert one.ids in chosen or (ended, score) <= (ranks[-1][0], ranks[-1][1] + 1e-4)
    assert [[one.ids for one in hypotheses[:n_best]] for hypotheses in plain] != [
        [one.ids for one in hypotheses] for hypotheses in weighed
    ]


@pytest.mark.slow
def test_coverage_lowers_the_scores_of_cut_hypotheses() -> None:
    made, source = model(), SOURCES[0]  # longer than the output, so that part of it gets no attention
    limits = {"eos_id": EOS, "sources": [source], "max_new_tokens": 3, "min_new_tokens": 3}
    found = beam_search(made, [[BOS]], Beam(size=3, n_best=3, alpha=0.5, coverage=0.7), **limits)[0]
    assert [one.finish for one in found] == ["length"] * 3
    assert [one.score for one in found] == pytest.approx(
        [rank_by_hand(made, source, [BOS], one)[1] for one in found], abs=1e-4
    )
    assert all(penalty_by_hand(made, source, [BOS, *one.ids]) < -0.1 for one in found)


def test_coverage_needs_cross_attention() -> None:
    toy = ToyTranslator(random_source_rule(V, 17), 17, V)
    with pytest.raises(ValueError, match="coverage requires a model with cross-attention, not ToyTranslator; set it"):
        beam_search(toy, [[BOS]], Beam(coverage=0.2), eos_id=EOS, sources=[[EOS]], max_new_tokens=4)

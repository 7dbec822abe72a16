import math

import pytest
import torch
from toy_decoder import ToyTranslator, random_source_rule

from tercet.generation import Beam, Ensemble, Sampling, beam_search, stream

EOS, MAX_LEN, VOCAB = 2, 11, 7
SOURCES = [[3, EOS], [4, 5, 6, EOS], [EOS]]


def toy(seed: int, vocab_size: int = VOCAB, max_len: int = MAX_LEN) -> ToyTranslator:
    return ToyTranslator(random_source_rule(vocab_size, max_len, seed=seed), max_len, vocab_size)


def find(model, **settings):
    beam = Beam(size=4, n_best=4, **settings)
    return beam_search(model, [[1], [1, 4], [1]], beam, eos_id=EOS, sources=SOURCES, max_new_tokens=9)


@pytest.mark.parametrize("combine", ["linear", "log_linear"])
@pytest.mark.parametrize("copies", [1, 3])
def test_model_with_itself_equals_the_model(combine, copies: int) -> None:
    for separate, batched in zip(find(toy(1)), find(Ensemble([toy(1)] * copies, combine)), strict=True):
        assert [hypothesis.ids for hypothesis in separate] == [hypothesis.ids for hypothesis in batched]
        for hypothesis, reference in zip(separate, batched, strict=True):
            assert hypothesis.logprobs == pytest.approx(reference.logprobs, abs=1e-5)
            assert hypothesis.score == pytest.approx(reference.score, abs=1e-5)


@pytest.mark.parametrize("combine", ["linear", "log_linear"])
def test_probabilities_match_the_documented_means(combine) -> None:
    members = [toy(1), toy(2), toy(3)]
    for source, hypotheses in zip(SOURCES[:1], find(Ensemble(members, combine)), strict=False):
        for hypothesis in hypotheses:
            row = [1]
            for token, logprob in zip(hypothesis.ids, hypothesis.logprobs, strict=True):
                probabilities = [member.source_rule(source, row).double().softmax(-1) for member in members]
                if combine == "linear":
                    mean = sum(probabilities) / 3
                else:
                    mean = (probabilities[0] * probabilities[1] * probabilities[2]) ** (1 / 3)
                    mean = mean / mean.sum()
                assert logprob == pytest.approx(math.log(mean[token]), abs=1e-4)
                row.append(token)


@pytest.mark.parametrize("combine", ["linear", "log_linear"])
@torch.inference_mode()
def test_logits_are_log_probabilities(combine) -> None:
    ensemble = Ensemble([toy(1), toy(2)], combine).eval()
    tokens, lengths, source = torch.tensor([[1]]), torch.tensor([1]), torch.tensor([SOURCES[1]])
    logits, cache = ensemble.start(tokens, lengths, source=source, source_token_mask=source > 0, capacity=4)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(1))
    torch.testing.assert_close(ensemble.step(tokens[0], cache).exp().sum(-1), torch.ones(1))


def test_ensemble_differs_from_its_members_and_between_means() -> None:
    members = [toy(1), toy(2), toy(3)]
    answers = [find(member) for member in members]
    answers += [find(Ensemble(members)), find(Ensemble(members, "log_linear"))]
    assert all(answer != previous for number, answer in enumerate(answers) for previous in answers[:number])


def test_ensemble_samples_in_eval_mode() -> None:
    members = [toy(1), toy(2)]
    ensemble = Ensemble(members).train()
    greedy = Sampling(temperature=0, max_new_tokens=9)
    columns = list(stream(ensemble, [[1]], greedy, sources=[SOURCES[0]], stop_ids={EOS}))
    (hypothesis,) = beam_search(
        Ensemble(members), [[1]], Beam(size=1), eos_id=EOS, sources=SOURCES[:1], max_new_tokens=9
    )[0]
    assert hypothesis.ids == tuple(token.id for (token,) in columns if token)
    assert all(member.training for member in members)


def test_smallest_context_applies_to_all() -> None:
    assert Ensemble([toy(1), toy(2, max_len=8)]).max_len == 8
    assert Ensemble([toy(1)]).vocab_size == VOCAB


def test_members_of_different_vocabularies_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"the same vocabulary, got vocab_size=\[7, 9\]"):
        Ensemble([toy(1), toy(1, vocab_size=9)])
    with pytest.raises(ValueError, match=r"got vocab_size=\[\]"):
        Ensemble([])
    with pytest.raises(ValueError, match="combine='mean' must be linear or log_linear"):
        Ensemble([toy(1)], "mean")  # type: ignore[arg-type]


def test_parameters_include_those_of_all_members() -> None:
    first, second = toy(1), toy(2)
    first.weight, second.weight = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    assert [len(parameter) for parameter in Ensemble([first, second]).parameters()] == [2, 3]

"""Attention patterns and ablations of heads, tested on heads with a known effect."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from small import V, encoder, model, translator

import tercet.inspect.heads as heads_file
from tercet.inspect import ablations, head_scores
from tercet.models import AnyModel, Edit, record
from tercet.nn import NoPosition

LENGTH = 5
PREVIOUS, INDUCTION = "stack.blocks.0.self_attention", "stack.blocks.1.self_attention"


def attend_at_offset(offset: int, head: int):
    """Return scores with which one head attends `offset` tokens back, and the others uniformly."""

    def scores(q: Tensor, k: Tensor, *, bias: Tensor | None = None, softcap: float | None = None) -> Tensor:
        attention_logits = torch.zeros(*q.shape[:-1], k.shape[-2])
        attention_logits[:, head] += 50.0 * torch.ones(q.shape[-2], k.shape[-2]).tril(-offset).triu(-offset)
        return attention_logits

    return scores


@pytest.mark.parametrize(("offset", "kind"), [(1, "previous"), (LENGTH - 1, "induction")])
def test_a_perfect_head_has_score_one(offset: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.nn.attention.attention_scores", attend_at_offset(offset, 2))
    result = head_scores(model(), length=LENGTH, rows=3)
    for scores in (result.previous, result.induction):
        assert list(scores) == [PREVIOUS, INDUCTION]
        assert all(head_values.shape == (4,) for head_values in scores.values())
    matching, nonmatching = (
        (result.previous, result.induction) if kind == "previous" else (result.induction, result.previous)
    )
    assert matching[PREVIOUS][2] > 0.999
    assert (matching[PREVIOUS][[0, 1, 3]] < 0.4).all()
    assert nonmatching[PREVIOUS][2] < 0.4


def test_a_uniform_head_scores_chance() -> None:
    decoder = model(position=NoPosition())
    for block in decoder.stack.blocks:
        torch.nn.init.zeros_(block.self_attention.query.weight)
        torch.nn.init.zeros_(block.self_attention.query.bias)
    result = head_scores(decoder, length=LENGTH)
    previous = sum(1 / (t + 1) for t in range(1, 2 * LENGTH)) / (2 * LENGTH - 1)
    induction = sum(1 / (t + 1) for t in range(LENGTH, 2 * LENGTH)) / LENGTH
    torch.testing.assert_close(result.previous[PREVIOUS], torch.full((4,), previous))
    torch.testing.assert_close(result.induction[PREVIOUS], torch.full((4,), induction))


def test_the_test_text_is_random_and_repeated() -> None:
    decoder, ids, texts = model(), [3, 4, 7, 11, 13, 16], []
    decoder.embedding.register_forward_hook(lambda part, args, output: texts.append(args[0]))
    head_scores(decoder, ids=ids, rows=11)
    head_scores(decoder, ids=ids, rows=11)
    head_scores(decoder, ids=ids, rows=11, seed=1)
    text = texts[0]
    assert text.shape == (11, 12)  # as many as fit twice into 13
    assert torch.equal(text[:, :6], text[:, 6:])
    assert set(text.flatten().tolist()) == set(ids)
    assert all(len(set(row.tolist())) == 6 for row in text)
    assert torch.equal(texts[1], text)
    assert not torch.equal(texts[2], text)


def test_encoders_have_previous_but_no_induction_scores() -> None:
    result = head_scores(encoder())
    assert list(result.previous) == [PREVIOUS, INDUCTION]
    assert result.induction == {}
    result = head_scores(translator(), length=LENGTH)
    assert len(result.previous) == 2 + 3
    assert list(result.induction) == [f"decoder.blocks.{i}.self_attention" for i in range(3)]
    separate_vocabularies = translator(spec={"source_vocab_size": 11, "share_embeddings": False})
    assert len(head_scores(separate_vocabularies, length=6).previous) == 5  # ids of the source vocabulary


def test_unsuitable_arguments_are_rejected() -> None:
    for how, words in (
        ({"length": 7}, "length=7 must be at least 2 and fit twice into the context of 13"),
        ({"length": 1}, "length=1 must be at least 2"),
        ({"length": 5, "ids": [1, 2, 3]}, "cannot draw 5 distinct tokens from 3; pass length=3"),
    ):
        with pytest.raises(ValueError, match=words):
            head_scores(model(), **how)


def count_calls(any_model: AnyModel, *inputs: Tensor) -> tuple[Callable[[], float], list[float]]:
    """Return a loss function and the list of values that it has returned."""
    calls: list[float] = []

    @torch.no_grad()
    def loss() -> float:
        calls.append(any_model(*inputs).logsumexp(-1).mean().item())
        return calls[-1]

    return loss, calls


@pytest.mark.slow
def test_ablations_are_increases_of_the_loss() -> None:
    decoder = model(n_kv_heads=2)
    loss, calls = count_calls(decoder, torch.randint(V, (3, 7)))
    before = loss()
    increases = ablations(decoder, loss)
    assert len(calls) == 1 + 1 + 2 * 4
    for name, rises in increases.items():
        for head, rise in enumerate(rises):
            with record(decoder, edits=[Edit(name=f"{name}.heads", heads=(head,))]):
                assert rise == pytest.approx(loss() - before, abs=1e-6)
            assert abs(rise) > 1e-6
    assert loss() == before


@pytest.mark.slow
def test_a_translator_has_heads_in_three_places() -> None:
    pair_model = translator(n_heads=2)
    loss, calls = count_calls(pair_model, torch.randint(V, (1, 5)), torch.randint(V, (1, 7)))
    increases = ablations(pair_model, loss)
    kinds = [name.split(".")[0] + name.rpartition(".")[2] for name in increases]
    assert (
        sorted(kinds) == ["decodercross_attention"] * 3 + ["decoderself_attention"] * 3 + ["encoderself_attention"] * 2
    )
    assert len(calls) == 1 + 8 * 2
    assert all(rise != 0 for rises in increases.values() for rise in rises)


@pytest.mark.slow
def test_ablating_a_head_without_effect_changes_nothing() -> None:
    decoder, text = model(), torch.randint(V, (3, 7))
    with torch.no_grad():
        decoder.stack.blocks[0].self_attention.out.weight[:, 6:12] = 0

    @torch.no_grad()
    def loss() -> float:
        return decoder(text).logsumexp(-1).mean().item()

    assert ablations(decoder, loss)[PREVIOUS][1] == 0.0
    ablated = Edit(name=f"{INDUCTION}.heads", heads=(3,))
    increases = ablations(decoder, loss, edits=[ablated])
    assert increases[INDUCTION][3] == 0.0
    with record(decoder, edits=[ablated]):
        before = loss()
    with record(decoder, edits=[ablated, Edit(name=ablated.name, heads=(2,))]):
        assert increases[INDUCTION][2] == pytest.approx(loss() - before, abs=1e-6)


def test_a_planted_fault_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    mean_weight = heads_file._mean_weight
    monkeypatch.setattr(heads_file, "_mean_weight", lambda weights, offset: mean_weight(weights, offset - 1))
    with pytest.raises(AssertionError):
        test_a_uniform_head_scores_chance()

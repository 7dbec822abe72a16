"""Speculative rounds with state on the device give the same tokens, with one launch and one wait per round."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from operations import Operations
from small_models import CONTEXT, POSITIONS, VOCAB, language_model

from sampled_cases import sampled
from tercet.config import UserError
from tercet.generation import Draft, Lookup, Pass, Sampling, speculate, speculative
from tercet.generation.decode_graphs import ResultReader, StepGraphs
from tercet.generation.speculative_graphs import RoundState, speculative_round
from tercet.models import DecoderOnly
from tercet.nn.specs import Position

pytestmark = pytest.mark.slow

GREEDY = Sampling(max_new_tokens=20, temperature=0)
PLAIN = Sampling(max_new_tokens=20)
SAMPLED = Sampling(max_new_tokens=20, temperature=0.7, top_k=9, top_p=0.9, min_p=0.02, repetition_penalty=1.2)
SAMPLINGS = {"greedy": GREEDY, "plain": PLAIN, "filters": SAMPLED}
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [2] * 15, [4, 5, 4, 5, 4]]
OPTIONS: dict[str, Any] = {"stop_ids": {3}, "forbidden": {0, 16}, "seeds": [7, 8, 9, 10, 11]}


@pytest.fixture
def speculate_by_graphs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `speculate` as it runs on a GPU."""

    def passes(*args: Any, **options: Any) -> Iterator[Pass]:
        with monkeypatch.context() as patch:
            patch.setattr(speculative, "can_capture", lambda model, device: True)
            yield from speculate(*args, **options)

    return passes


def similar(model: DecoderOnly, *, max_len: int = CONTEXT, noise: float = 0.05) -> DecoderOnly:
    """Return a draft model that is often right."""
    draft = DecoderOnly(replace(model.spec, max_len=max_len)).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter, target_parameter in zip(draft.parameters(), model.parameters(), strict=True):
            parameter.copy_(target_parameter[tuple(map(slice, parameter.shape))])
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
    return draft


def assert_same(found: list[Pass], expected: list[Pass]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for row, expected_row in zip(ours, theirs, strict=True):
            assert [(token.id, token.finish) for token in row] == [(token.id, token.finish) for token in expected_row]
            assert [t.logprob for t in row] == pytest.approx([t.logprob for t in expected_row], abs=1e-4)


def make_speculation(kind: str, model: DecoderOnly) -> Draft | Lookup:
    if kind == "lookup":
        return Lookup(ngram=1, tokens=4)
    return Draft(model=similar(model, max_len=9 if kind == "short draft" else CONTEXT), tokens=3)


USUAL = (
    "rotary-draft-plain", "rotary-draft-filters", "rotary-short draft-filters", "rotary-lookup-greedy",
    "rotary-lookup-plain", "rotary-lookup-filters", "learned-short draft-greedy",
)  # fmt: skip


@pytest.mark.parametrize(
    ("position", "kind", "sampling"),
    [
        pytest.param(*case, id=name, marks=() if name in USUAL else pytest.mark.exhaustive)
        for case in itertools.product(POSITIONS, ("draft", "short draft", "lookup"), SAMPLINGS)
        for name in [f"{case[0].kind}-{case[1]}-{case[2]}"]
    ],
)
def test_passes_give_the_same_tokens(speculate_by_graphs: Any, position: Position, kind: str, sampling: str) -> None:
    """Five rows of different lengths: windows move, and some rows end."""
    model = language_model(position)
    speculation = make_speculation(kind, model)
    expected = list(speculate(model, PROMPTS, SAMPLINGS[sampling], speculation=speculation, **OPTIONS))
    assert_same(
        list(speculate_by_graphs(model, PROMPTS, SAMPLINGS[sampling], speculation=speculation, **OPTIONS)), expected
    )
    n_tokens = [len(row) for pass_tokens in expected for row in pass_tokens]
    assert max(n_tokens) > 1, "no draft token was accepted"
    assert max(n_tokens) <= speculation.tokens + 1


def test_always_right_draft_gives_all_its_tokens_and_one_more(speculate_by_graphs: Any) -> None:
    model = language_model()
    speculation = Draft(model=similar(model, noise=0.0), tokens=3)
    expected = list(speculate(model, [[1, 2]], PLAIN, speculation=speculation))
    assert [len(row) for (row,) in expected[:3]] == [1, 4, 4]
    assert_same(list(speculate_by_graphs(model, [[1, 2]], PLAIN, speculation=speculation)), expected)


@pytest.mark.parametrize("kind", ["draft", "lookup"])
def test_pass_has_one_launch_and_one_wait(speculate_by_graphs: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = language_model(), list[str]()
    for owner, name in ((StepGraphs, "run"), (ResultReader, "read")):
        original = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, name=name, original=original: (calls.append(name), original(*args))[1]
        )
    passes = list(speculate_by_graphs(model, [[1, 2], [5, 6, 5]], GREEDY, speculation=make_speculation(kind, model)))
    assert calls == ["run", "read"] * len(passes)


@pytest.mark.parametrize("kind", ["draft", "lookup"])
def test_rows_ended_by_the_caller_leave_and_others_are_unchanged(speculate_by_graphs: Any, kind: str) -> None:
    model = language_model()
    speculation = make_speculation(kind, model)

    def by(speculating: Any) -> list[Pass]:
        ended_rows, passes = set[int](), list[Pass]()
        for pass_tokens in speculating(
            model, PROMPTS[:3], PLAIN, speculation=speculation, seeds=[1, 2, 3], finished_rows=ended_rows
        ):
            passes.append(pass_tokens)
            if len(passes) == 2:
                ended_rows.add(1)
        return passes

    assert_same(by(speculate_by_graphs), by(speculate))


@pytest.mark.parametrize(("drafts", "sampling"), sampled([*itertools.product((True, False), SAMPLINGS)], keep=(2, 4)))
def test_round_stays_on_the_device_and_at_its_addresses(drafts: bool, sampling: str) -> None:
    """Run on the meta device, where tensors have no values that a host could read."""
    with torch.inference_mode():
        models = [language_model().to("meta") for _ in range(1 + drafts)]
        caches = [model.new_cache(3, capacity=8) for model in models]
        state = RoundState(caches[0], caches[1] if drafts else None, draft_tokens=4, vocab_size=VOCAB)
        before = [(tensor, tensor.untyped_storage()._cdata) for tensor in state.changing()]
        with Operations() as operations:
            for _ in range(2):
                speculative_round(models, state, SAMPLINGS[sampling])
    assert len(operations.names) > 50
    for (old, storage), new in zip(before, state.changing(), strict=True):
        assert old is new
        assert storage == new.untyped_storage()._cdata


@pytest.mark.parametrize("kind", ["draft", "lookup"])
def test_diverged_model_raises(speculate_by_graphs: Any, kind: str) -> None:
    model = language_model(POSITIONS[0])
    speculation = make_speculation(kind, model)
    with torch.no_grad():
        model.stack.position.table.weight[9] = torch.nan  # reached by lookahead in the second round or later
    assert next(speculate_by_graphs(model, [[1, 2, 3]], GREEDY, speculation=speculation))[0]
    with pytest.raises(UserError, match="not numbers"):
        list(speculate_by_graphs(model, [[1, 2, 3]], GREEDY, speculation=speculation))


def test_idle_tables_are_reused_only_with_the_same_draft(
    speculate_by_graphs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[int] = []
    original = RoundState.__init__
    monkeypatch.setattr(
        RoundState, "__init__", lambda *args, **options: (states.append(1), original(*args, **options))[1]
    )
    model = language_model()
    draft = make_speculation("draft", model)
    for speculation, expected in ((draft, 1), (draft, 1), (make_speculation("draft", model), 2)):
        list(speculate_by_graphs(model, [[1, 2]], GREEDY, speculation=speculation))
        assert len(states) == expected

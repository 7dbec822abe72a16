"""Beam search with selection on the device finds the same hypotheses; on a CPU it runs without graphs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from operations import Operations
from small_models import CONTEXT, POSITIONS, VOCAB, language_model, translator

from tercet.config import UserError
from tercet.generation import Beam, Hypothesis, beam_search
from tercet.generation import beam as beam_module
from tercet.generation.beam_decoding import BeamBatch
from tercet.generation.beam_graphs import BeamSpace, BeamState, GraphBeams, beam_step
from tercet.generation.decode_graphs import ResultReader

EOS = 2
SOURCES = [[3, 4, 5, 6, 7], [5], [6, 7], [5], [8, 9, 10, 11, 12, 13]]
PREFIXES = [[1], [1, 4], [1], [1, 4], [1, 5, 6]]


def search(model: Any, beam: Beam, **options: Any) -> list[list[Hypothesis]]:
    limits = {"max_new_tokens": [9, 3, 10, 0, 11], "min_new_tokens": [0, 2, 4, 0, 1]} | options
    return beam_search(model, PREFIXES, beam, eos_id=EOS, forbidden={0, 1}, **limits)


def assert_same(found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [(hypothesis.ids, hypothesis.finish) for hypothesis in ours] == [
            (hypothesis.ids, hypothesis.finish) for hypothesis in theirs
        ]
        assert [hypothesis.logprob for hypothesis in ours] == pytest.approx(
            [hypothesis.logprob for hypothesis in theirs], abs=1e-4
        )


@pytest.fixture
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_module, "can_capture", lambda model, device: True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "size"),
    [
        pytest.param(
            spec, size, id=f"{spec.kind}-{size}",
            marks=() if (spec.kind == "rotary" and size != 2) or (spec.kind, size) == ("learned", 5)
            else pytest.mark.exhaustive,
        )
        for spec in POSITIONS
        for size in (1, 2, 5, 12)
    ],
)  # fmt: skip
def test_hypotheses_match_the_other_search(position, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of different lengths with their own limits; size 12 asks for more candidates than exist."""
    beam, model, writer = Beam(size=size, n_best=min(size, 3)), translator(position), language_model(position)
    expected = search(model, beam, sources=SOURCES), search(writer, beam)
    monkeypatch.setattr(beam_module, "can_capture", lambda model, device: True)
    for _ in range(2):  # the second search reuses the tables of the first
        assert_same(search(model, beam, sources=SOURCES), expected[0])
        assert_same(search(writer, beam), expected[1])


@pytest.mark.usefixtures("on_the_device")
def test_sentence_does_not_depend_on_other_sentences() -> None:
    model, beam = translator(), Beam(size=3)
    batched = search(model, beam, sources=SOURCES)
    separate = beam_search(
        model,
        PREFIXES[2:3],
        beam,
        eos_id=EOS,
        forbidden={0, 1},
        sources=SOURCES[2:3],
        max_new_tokens=10,
        min_new_tokens=4,
    )
    assert_same(separate, batched[2:3])


@pytest.mark.usefixtures("on_the_device")
def test_step_is_launched_before_the_last_candidates_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for kind, name in ((BeamSpace, "step"), (ResultReader, "read")):
        original = getattr(kind, name)
        monkeypatch.setattr(
            kind, name, lambda *args, name=name, original=original: (calls.append(name), original(*args))[1]
        )
    beam_search(translator(), [[1]], Beam(size=2), eos_id=EOS, sources=[[3]], max_new_tokens=4, min_new_tokens=4)
    assert calls == ["step", "read"] * 3 + ["read"]  # the first candidates come from the prefix


@pytest.mark.usefixtures("on_the_device")
def test_diverged_model_raises() -> None:
    model = translator()
    with torch.no_grad():
        model.unembedding.weight[5] = torch.nan
    with pytest.raises(UserError, match="not numbers"):
        search(model, Beam(size=2), sources=SOURCES)


def test_training_model_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its step could be captured: training needs the memory itself."""
    training_flags: list[bool] = []
    monkeypatch.setattr(beam_module, "can_capture", lambda model, device: training_flags.append(model.training))
    search(translator().train(), Beam(size=2), sources=SOURCES)
    search(translator(), Beam(size=2), sources=SOURCES)
    assert training_flags == [True, False]


def make_state(model: Any, size: int) -> BeamState:
    cache = model.new_cache(2 * size, capacity=8)
    cache.rows_per_source = size
    cache.allocate_sources(5)
    forbidden = torch.tensor([0], device=cache.lengths.device)
    return BeamState(cache, size=size, forbidden=forbidden, eos_id=EOS)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_step_stays_on_the_device_and_at_its_addresses(size: int) -> None:
    with torch.inference_mode():
        model = translator().to("meta")
        state = make_state(model, size)
        before = [(tensor, tensor.untyped_storage()._cdata) for tensor in state.changing()]
        with Operations() as operations:
            for _ in range(2):
                beam_step(model, state)
        after = [(tensor, tensor.untyped_storage()._cdata) for tensor in state.changing()]
    assert len(operations.names) > 50
    for (old, old_storage), (new, new_storage) in zip(before, after, strict=True):
        assert old is new
        assert old_storage == new_storage


def test_tables_are_reused_for_searches_that_fit() -> None:
    model = translator()
    settings: dict[str, Any] = {
        "prefixes": [[1]] * 3, "sources": [[3]] * 3, "source_pad": 0, "limits": [5] * 3, "shortest": [0] * 3, "size": 2,
        "eos_id": EOS, "forbidden": {0},
    }  # fmt: skip
    space = BeamSpace(model, sentences=4, capacity=6, sources=4, size=2, forbidden=[0], eos_id=EOS)
    assert space.fits(model, BeamBatch(**settings), 3)
    for change in ({"size": 3}, {"limits": [9] * 3}, {"prefixes": [[1]] * 5, "limits": [5] * 5}, {"forbidden": {1}}):
        assert not space.fits(model, BeamBatch(**settings | change), 3)
    assert not space.fits(model, BeamBatch(**settings), 5)
    assert not space.fits(model, BeamBatch(**settings | {"sources": None}), 0)


def test_finished_sentences_are_left_out() -> None:
    model = translator()
    batch = BeamBatch(
        prefixes=[[1]] * 3, sources=SOURCES[:3], source_pad=0, limits=[9] * 3, shortest=[0] * 3, size=2, eos_id=EOS,
        forbidden={0},
    )  # fmt: skip
    with torch.inference_mode():
        space = BeamSpace(model, sentences=4, capacity=CONTEXT, sources=8, size=2, forbidden=[0], eos_id=EOS)
        beams = GraphBeams(model, batch, space)
        values, parents, tokens = beams.candidates()
        assert values.shape == parents.shape == tokens.shape == (3, 4)
        assert tokens.max() < VOCAB
        beams.advance([0, 2], values, parents, tokens)
        beams.candidates()
        beams.advance([1], values, parents, tokens)
        (last,) = beams.candidates()[0]
        space.results.drop()
        graph_beams = GraphBeams(model, batch, space)
        candidates = [graph_beams.candidates()[0] for _ in range(3)]
    np.testing.assert_array_equal(last, candidates[2][2])

"""Decoding with state on the device gives the same tokens and never reads from the device within a step."""

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from operations import Operations
from small_models import CONTEXT, POSITIONS, VOCAB, graph_decoding, language_model, stream_by_graphs, translator

from tercet.config import UserError
from tercet.generation import Column, Sampling, decode_graphs, stream
from tercet.generation.decode_graphs import (
    ResultReader,
    Workspace,
    can_capture,
    decode_mode,
    round_up_capacity,
    round_up_rows,
    workspace,
)
from tercet.generation.decode_state import DecodeState, decode_step
from tercet.generation.decoding import Batch
from tercet.generation.row_sampling import Filters
from tercet.generation.stream import columns

GREEDY = Sampling(max_new_tokens=20, temperature=0)
SAMPLED = Sampling(max_new_tokens=20, temperature=1.3, top_k=9, top_p=0.9, min_p=0.02, repetition_penalty=1.2, seed=4)
PLAIN = Sampling(max_new_tokens=20)
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [2] * 15, [4]]
ALL_FILTERS = Filters(draws=True, penalty=True, top_k=8, top_p=True, min_p=True, forbids=True, likeliest=3)


def assert_same(ours: list[Column], expected: list[Column]) -> None:
    assert len(ours) == len(expected)
    for column, expected_column in zip(ours, expected, strict=True):
        for token, expected_token in zip(column, expected_column, strict=True):
            assert (token is None) == (expected_token is None)
            if token is not None and expected_token is not None:
                assert (token.id, token.finish) == (expected_token.id, expected_token.finish)
                assert token.logprob == pytest.approx(expected_token.logprob, abs=1e-4)


def by_position(name: str, options: dict[str, Any], usual: Collection[str]) -> pytest.MarkDecorator:
    """Parametrize over positions and options; cases that are not usual are exhaustive."""
    cases = {f"{spec.kind}-{option}": (spec, value) for spec in POSITIONS for option, value in options.items()}
    assert set(usual) <= set(cases)
    parameters = [
        pytest.param(*values, id=case, marks=() if case in usual else pytest.mark.exhaustive)
        for case, values in cases.items()
    ]
    return pytest.mark.parametrize(("position", name), parameters)


@pytest.mark.slow
@by_position(
    "sampling",
    {"greedy": GREEDY, "plain": PLAIN, "filters": SAMPLED},
    ("rotary-greedy", "rotary-plain", "rotary-filters", "learned-filters", "alibi-plain", "relative_bias-filters"),
)
def test_tokens_match_the_other_decoder(position, sampling: Sampling) -> None:
    """Five rows of different lengths: windows move, and some rows end."""
    model, seeds = language_model(position), [7, 8, 9, 10, 11]
    options: dict[str, Any] = {"stop_ids": {3}, "forbidden": {0, 16}, "seeds": seeds}
    expected = list(stream(model, PROMPTS, sampling, **options))
    assert_same(list(stream_by_graphs(model, PROMPTS, sampling, **options)), expected)
    lengths = [sum(column[row] is not None for column in expected) for row in range(5)]
    assert max(lengths) > CONTEXT - 3, "no window has moved"


def test_ended_rows_leave_and_others_are_unchanged() -> None:
    model = language_model()

    def by(streaming: Any) -> list[Column]:
        ended_rows: set[int] = set()
        stream_columns: list[Column] = []
        for column in streaming(model, PROMPTS[:3], PLAIN, stop_ids={3}, seeds=[1, 2, 3], finished_rows=ended_rows):
            stream_columns.append(column)
            if len(stream_columns) == 4:
                ended_rows.add(1)
        return stream_columns

    assert_same(by(stream_by_graphs), by(stream))


def test_row_does_not_depend_on_other_rows() -> None:
    model = language_model()
    batched = list(stream_by_graphs(model, PROMPTS, SAMPLED, seeds=[1, 2, 3, 4, 5]))
    for row in (0, 3):
        separate = list(stream_by_graphs(model, [PROMPTS[row]], SAMPLED, seeds=[row + 1]))
        assert [column[0].id for column in separate if column[0]] == [c[row].id for c in batched if c[row]]


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "plain"])
def test_translator_decodes_its_sources(sampling: Sampling) -> None:
    model, sources = translator(), [[3, 4, 5, 6, 7], [5], [6, 7]]
    options: dict[str, Any] = {"sources": sources, "stop_ids": {2}, "forbidden": {0}, "seeds": [1, 2, 3]}
    prompts = [[1], [1, 4], [1]]
    expected = list(stream(model, prompts, sampling, **options))
    assert_same(list(stream_by_graphs(model, prompts, sampling, **options)), expected)


def test_diverged_model_raises_in_the_step_that_diverged() -> None:
    model = language_model(POSITIONS[0])
    with torch.no_grad():
        model.stack.position.table.weight[6] = torch.nan
    tokens = stream_by_graphs(model, [[1, 2, 3]], GREEDY)
    for _ in range(4):  # for the positions 2, 3, 4 and 5
        next(tokens)
    with pytest.raises(UserError, match="not numbers"):
        next(tokens)


def test_reused_tables_do_not_change_results() -> None:
    model = language_model()
    batch = Batch(rows=[[1, 2], [3]], sources=None, source_pad=0, sampling=GREEDY, forbidden=set(), seeds=[1, 2])
    decoding = graph_decoding(model, batch)
    with torch.inference_mode():
        for layer in decoding._space.state.cache.layers:
            layer.self_kv.keys.fill_(torch.nan)
            layer.self_kv.values.fill_(torch.nan)
    tokens = list(columns(decoding, batch, [], model.max_len, set(), set()))
    assert_same(tokens, list(stream(model, [[1, 2], [3]], GREEDY, seeds=[1, 2])))


def test_step_is_launched_before_the_last_results_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for kind, name in ((Workspace, "step"), (ResultReader, "read")):
        original = getattr(kind, name)
        monkeypatch.setattr(
            kind, name, lambda *args, name=name, original=original: (calls.append(name), original(*args))[1]
        )
    tokens = list(stream_by_graphs(language_model(), [[1, 2], [3]], Sampling(max_new_tokens=5, temperature=0)))
    assert len(tokens) == 5
    assert calls == ["step", "read"] * 4 + ["read"]  # the first token comes from the prompt


@pytest.mark.slow
@by_position(
    "filters",
    {"greedy": Filters(), "filters": ALL_FILTERS},
    ("rotary-greedy", "rotary-filters", "learned-filters", "alibi-filters"),
)
def test_step_stays_on_the_device_and_at_its_addresses(position, filters: Filters) -> None:
    """Run on the meta device, where tensors have no values that a host could read."""
    with torch.inference_mode():
        model = language_model(position).to("meta")
        state = DecodeState(model.new_cache(3, capacity=8), vocab_size=VOCAB, max_len=CONTEXT, likeliest=3)
        before = [(tensor, tensor.untyped_storage()._cdata) for tensor in state_tensors(state)]
        with Operations() as operations:
            for _ in range(2):
                decode_step(model, state, filters)
        after = [(tensor, tensor.untyped_storage()._cdata) for tensor in state_tensors(state)]
    assert len(operations.names) > 50
    for (old, old_storage), (new, new_storage) in zip(before, after, strict=True):
        assert old is new
        assert old_storage == new_storage


@pytest.mark.slow
def test_step_launches_few_kernels() -> None:
    """Per layer: two norms, six products, attention, activation, two sums, and two cache writes."""
    counts: list[int] = []
    for layers in (1, 2):
        with torch.inference_mode():
            model = language_model(POSITIONS[0], n_layers=layers).to("meta")
            state = DecodeState(model.new_cache(3, capacity=8), vocab_size=VOCAB, max_len=CONTEXT)
            with Operations() as operations:
                decode_step(model, state, Filters())
        counts.append(operations.kernels)
    per_layer = counts[1] - counts[0]
    assert per_layer <= 2 + 6 + 1 + 1 + 2 + 2
    assert counts[0] - per_layer <= 30  # embedding, positions, mask, logits, choice, log-probabilities, results


def test_host_read_in_a_step_would_be_detected() -> None:
    elsewhere = torch.zeros(3, device="meta")
    with pytest.raises(AssertionError, match="nonzero waits"), Operations():
        elsewhere.nonzero()
    with pytest.raises(AssertionError, match="zeros has a tensor on the CPU"), Operations():
        torch.zeros(3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "traced",
    [
        ("decoder:rotary",),
        pytest.param(
            (
                "draft:rotary",
                "decoder:learned",
                "decoder:alibi",
                "decoder:relative_bias",
                "translator:sinusoidal",
                "beam:rotary",
                "lookup:learned",
            ),
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_step_compiles_as_one_graph(traced: tuple[str, ...]) -> None:
    command = [sys.executable, Path(__file__).with_name("traced_step.py"), *traced]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]


def state_tensors(state: DecodeState) -> list[torch.Tensor]:
    tables = [table for layer in state.cache.layers for table in (layer.self_kv.keys, layer.self_kv.values)]
    return [*state.changing(), state.uniform, state.settings.table, state.forbidden, *tables]


def test_real_tensors_keep_their_addresses() -> None:
    batch = Batch(rows=[[1, 2], [3]], sources=None, source_pad=0, sampling=SAMPLED, forbidden=set(), seeds=[1, 2])
    model = language_model()
    decoding = graph_decoding(model, batch)
    state = decoding._space.state
    addresses = [tensor.data_ptr() for tensor in state_tensors(state)]
    with torch.inference_mode():
        for _ in range(2):
            decoding.read([0, 1], batch.rows, capacity=CONTEXT)
            for _ in range(4):
                decoding.sample(launch_next=True)
            decoding.keep([1])
    assert [tensor.data_ptr() for tensor in state_tensors(state)] == addresses


def test_number_of_graph_sizes_is_small() -> None:
    assert [round_up_rows(n) for n in (1, 2, 3, 5, 33)] == [1, 2, 4, 8, 64]
    assert [round_up_capacity(n, 1000) for n in (1, 127, 128, 255, 256, 1000)] == [127, 127, 255, 255, 511, 1000]
    assert round_up_capacity(5, 13) == 13


def test_graph_is_captured_once_per_size_and_again_if_a_weight_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captures: list[int] = []
    steps: list[int] = []

    def note(function: Any, changing: Any, pool: Any) -> Any:
        captures.append(len(captures))
        return function

    monkeypatch.setattr(decode_graphs, "capture", note)
    monkeypatch.setattr(decode_graphs, "MAX_GRAPHS", 3)
    model = language_model()
    graphs = decode_graphs.StepGraphs(model, lambda model, size: steps.append(size), mode="graph")
    graphs._pool = (0, 0)

    def run(*sizes: int) -> int:
        before = len(captures)
        for size in sizes:
            graphs.run(model, size, lambda size=size: ((size,), []))
        return len(captures) - before

    assert run(1, 2, 1, 2, 3) == 3
    assert steps == [1, 2, 1, 2, 3]
    assert run(1, 4, 1, 3) == 1  # 2 was least recently used and is replaced by 4
    assert run(2) == 1
    with torch.no_grad():
        model.unembedding.weight += 1.0
    assert run(2, 1) == 0  # the weights have other values at the same addresses
    model.unembedding.weight.data = model.unembedding.weight.data.clone()
    assert run(2, 2) == 1
    model.stack.final_norm.weight = torch.nn.Parameter(torch.ones(24))
    assert run(2, 2) == 1


def test_workspace_is_reused_until_too_small_or_the_model_changed() -> None:
    model = language_model()
    with workspace(model, rows=3, capacity=5) as first, workspace(model, rows=1, capacity=5) as second:
        assert second is not first  # two generations at the same time
    with workspace(model, rows=2, capacity=5) as reused:
        assert reused is first
    with workspace(model, rows=9, capacity=5) as larger:
        assert larger is not first
    model.double()
    with workspace(model, rows=2, capacity=5) as double:
        assert double is not larger
        assert double.state.cache.layers[0].self_kv.keys.dtype == torch.float64


def test_model_is_captured_only_on_a_gpu_and_unobserved(monkeypatch: pytest.MonkeyPatch) -> None:
    model, gpu = language_model(), torch.device("cuda")
    assert can_capture(model, gpu)
    assert not can_capture(model, torch.device("cpu"))
    assert not can_capture(torch.nn.Linear(2, 2), gpu)
    hook = model.stack.blocks[1].register_forward_hook(lambda *_: None)
    assert not can_capture(model, gpu)
    hook.remove()
    assert not can_capture(model.train(), gpu)
    model.eval()
    monkeypatch.setenv("TERCET_DECODE", "eager")
    assert not can_capture(model, gpu)
    monkeypatch.setenv("TERCET_DECODE", "compilde")
    with pytest.raises(UserError, match=r"unknown TERCET_DECODE=compilde.*compiled"):
        decode_mode()

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy_decoder import Rule, ToyDecoder, ToyTranslator, random_rule, random_source_rule, script_rule

from tercet.generation import Column, Sampling, Token, distribution, draw, stream, window_start

pytestmark = pytest.mark.threads

VOCAB, CONTEXT = 11, 7
RULE = random_rule(VOCAB, CONTEXT)


def stream_by_recomputing(
    rule: Rule, prompt: Sequence[int], sampling: Sampling, *, max_len: int = CONTEXT, seed: int = 0, stop_id: int = -1
) -> list[Token]:
    """Generate one row without a cache: all visible tokens are read at every step."""
    row, tokens, generator = list(prompt), [], torch.Generator().manual_seed(seed)
    for number in range(sampling.max_new_tokens):
        logits = rule(row[window_start(len(row), max_len) :])[None]
        seen_mask = torch.tensor([[id in row for id in range(logits.shape[-1])]])
        id = int(draw(distribution(logits, sampling, seen_mask), [generator]))
        last = number + 1 == sampling.max_new_tokens
        finish = "eos" if id == stop_id else "length" if last else None
        tokens.append(Token(id=id, logprob=logits[0].log_softmax(-1)[id].item(), finish=finish))
        row.append(id)
        if finish:
            break
    return tokens


def tokens_by_row(columns: Iterator[Column]) -> list[list[Token]]:
    rows = list(zip(*columns, strict=True))
    tokens = [[token for token in row if token is not None] for row in rows]
    assert all(
        row[len(row_tokens) :] == (None,) * (len(row) - len(row_tokens))
        for row, row_tokens in zip(rows, tokens, strict=True)
    )
    return tokens


prompts = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3 * CONTEXT), min_size=1, max_size=5)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(prompts=prompts, data=st.data())
def test_batch_with_a_cache_matches_separate_rows_without(prompts: list[list[int]], data: Any) -> None:
    sampling = Sampling(
        max_new_tokens=data.draw(st.integers(1, 20)),
        temperature=data.draw(st.sampled_from([0.0, 1.0])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.5])),
    )
    seeds = data.draw(st.lists(st.integers(0, 9), min_size=len(prompts), max_size=len(prompts)))
    stop_id = data.draw(st.integers(0, VOCAB))
    model = ToyDecoder(RULE, CONTEXT)
    rows = tokens_by_row(stream(model, prompts, sampling, stop_ids={stop_id}, seeds=seeds))
    assert rows == [
        stream_by_recomputing(RULE, prompt, sampling, seed=seed, stop_id=stop_id)
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]


@pytest.mark.parametrize("max_len", [1, 2, 3, 6, 7])
def test_full_window_drops_the_oldest_half(max_len: int) -> None:
    visible: list[int] = []
    for n in range(1, 40):
        visible.append(n - 1)
        if len(visible) > max_len:
            visible = visible[-(max_len // 2 + 1) :]
        assert list(range(window_start(n, max_len), n)) == visible
        assert 1 <= len(visible) <= max_len


def test_window_moves_seldom() -> None:
    model = ToyDecoder(RULE, CONTEXT)
    list(stream(model, [[1, 2, 3]], Sampling(max_new_tokens=14)))
    # 3 to 7 tokens are visible, then 4 to 7, then again 4 to 7
    assert [name for name, _ in model.calls] == ["start", *["step"] * 4, *["start", *["step"] * 3] * 2, "start"]


def test_finished_rows_leave_the_batch() -> None:
    scripts = {1: [5, 0], 2: [5, 5, 5, 5, 0], 3: [5, 5, 0]}

    def rule(tokens: list[int]) -> Tensor:
        return script_rule(VOCAB, scripts[tokens[0]])(tokens)

    model = ToyDecoder(rule, CONTEXT)
    columns = list(stream(model, [[1], [2], [3]], Sampling(max_new_tokens=6), stop_ids={0}))
    ids = [[token and token.id for token in column] for column in columns]
    assert ids == [[5, 5, 5], [0, 5, 5], [None, 5, 0], [None, 5, None], [None, 0, None]]
    assert model.calls == [("start", 3), ("step", 3), ("step", 2), ("step", 1), ("step", 1)]
    assert [token.finish for token in columns[1] if token] == ["eos", None, None]


def test_rows_ended_by_the_caller_leave_the_batch() -> None:
    model = ToyDecoder(RULE, CONTEXT)
    ended_rows: set[int] = set()
    columns = []
    for column in stream(model, [[1], [2], [3]], Sampling(max_new_tokens=5, temperature=0), finished_rows=ended_rows):
        columns.append(column)
        ended_rows.add(len(columns) - 1)
    rows = tokens_by_row(iter(columns))
    assert [len(row) for row in rows] == [1, 2, 3]
    assert model.calls == [("start", 3), ("step", 2), ("step", 1)]
    assert rows[2] == stream_by_recomputing(RULE, [3], Sampling(max_new_tokens=5, temperature=0))[:3]


def test_samples_of_one_prompt_are_read_once_and_sampled_separately() -> None:
    model = ToyDecoder(lambda tokens: torch.zeros(VOCAB), CONTEXT)
    columns = list(stream(model, [[4, 5]] * 40 + [[6]], Sampling(max_new_tokens=2), seeds=range(41)))
    assert model.calls == [("start", 2), ("step", 41)]
    assert len({token.id for token in columns[0] if token}) > 5


def test_logprobs_are_those_of_the_model() -> None:
    wild = Sampling(max_new_tokens=3, temperature=3.0, top_k=4, repetition_penalty=2.0)
    row = [1, 2]
    for (token,) in stream(ToyDecoder(RULE, CONTEXT), [row], wild):
        assert token is not None
        assert token.logprob == pytest.approx(RULE(row).log_softmax(-1)[token.id].item())
        row.append(token.id)


def test_stop_id_in_the_prompt_does_not_stop() -> None:
    model = ToyDecoder(script_rule(VOCAB, [5, 6, 7], prompt=3), CONTEXT)
    columns = stream(model, [[0, 1, 0]], Sampling(max_new_tokens=3), stop_ids={0})
    assert [token.id for (token,) in columns if token] == [5, 6, 7]


def test_stop_id_as_the_last_token_is_an_end_not_a_cut() -> None:
    model = ToyDecoder(script_rule(VOCAB, [5, 0]), CONTEXT)
    *_, (token,) = stream(model, [[1]], Sampling(max_new_tokens=2), stop_ids={0})
    assert token is not None
    assert token.finish == "eos"


def test_cache_is_as_large_as_needed_and_no_larger() -> None:
    model = ToyDecoder(RULE, CONTEXT)
    list(stream(model, [[1, 2], [3]], Sampling(max_new_tokens=3)))
    assert model.capacities == [5]
    list(stream(model, [[1] * 6], Sampling(max_new_tokens=3)))
    assert model.capacities == [5, 7, 5]  # the second time 4 tokens are visible and one is to be generated


def test_empty_input_gives_no_output() -> None:
    model = ToyDecoder(RULE, CONTEXT)
    assert list(stream(model, [[1]], Sampling(max_new_tokens=0))) == []
    assert list(stream(model, [], Sampling())) == []
    assert model.calls == []


def test_prompts_of_the_caller_are_not_modified() -> None:
    prompt = [1, 2]
    list(stream(ToyDecoder(RULE, CONTEXT), [prompt], Sampling(max_new_tokens=3)))
    assert prompt == [1, 2]


def test_mode_of_the_model_is_restored_after_every_token() -> None:
    model = ToyDecoder(RULE, CONTEXT)
    model.frozen = torch.nn.Dropout()
    model.train()
    model.frozen.eval()
    for _ in stream(model, [[1]], Sampling(max_new_tokens=9)):
        assert (model.training, model.frozen.training) == (True, False)
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()


def test_mode_of_the_model_is_restored_after_an_error() -> None:
    def rule(tokens: list[int]) -> Tensor:
        if len(tokens) == 3:
            raise RuntimeError("no memory")
        return RULE(tokens)

    model = ToyDecoder(rule, CONTEXT).train()
    with pytest.raises(RuntimeError, match="no memory"):
        list(stream(model, [[1]], Sampling(max_new_tokens=9)))
    assert model.training
    assert not torch.is_inference_mode_enabled()


def test_wrong_arguments_are_reported_before_the_first_token() -> None:
    model = ToyDecoder(RULE, CONTEXT)
    with pytest.raises(ValueError, match="prompt 2 of 2 is empty; pass at least one token"):
        stream(model, [[1], []], Sampling())
    with pytest.raises(ValueError, match="expected 2 seeds, one per prompt, got 1"):
        stream(model, [[1], [2]], Sampling(), seeds=[0])
    with pytest.raises(ValueError, match="expected 2 sources, one per prompt, got 1"):
        stream(model, [[1], [2]], Sampling(), sources=[[0]])


def test_forbidden_tokens_are_never_sampled_and_logprobs_are_unchanged() -> None:
    row, forbidden = [1, 2], {0, 3, int(RULE([1, 2]).argmax())}
    for (token,) in stream(ToyDecoder(RULE, CONTEXT), [row], Sampling(max_new_tokens=5), forbidden=forbidden):
        assert token is not None
        assert token.id not in forbidden
        assert token.logprob == pytest.approx(RULE(row).log_softmax(-1)[token.id].item(), abs=1e-5)
        row.append(token.id)


def test_row_keeps_its_own_source_when_its_window_moves() -> None:
    rule = random_source_rule(VOCAB, CONTEXT, seed=4)
    prompts, sources = [[1], [1, 2], [1], [1]], [[3, 4], [5], [6, 7, 8], [3, 4]]
    model = ToyTranslator(rule, CONTEXT, VOCAB)
    sampling = Sampling(max_new_tokens=12)
    rows = tokens_by_row(stream(model, prompts, sampling, sources=sources, seeds=[1, 2, 3, 4]))
    for seed, (prompt, source, row) in enumerate(zip(prompts, sources, rows, strict=True), start=1):
        assert row == stream_by_recomputing(
            lambda tokens, source=source: rule(source, tokens), prompt, sampling, seed=seed
        )
    assert model.calls[0] == ("start", 3)  # two rows have the same prompt and source

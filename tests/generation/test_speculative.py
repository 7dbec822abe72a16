"""Speculative decoding changes the number of passes, but not the greedy text or the sampling distribution."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from ahead_decoder import CONTEXT, OTHER_RULE, RULE, VOCAB, AheadDecoder
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toy_decoder import Rule, ToyDecoder, random_rule, script_rule

from sampled_cases import sampled
from tercet.config import UserError
from tercet.generation import (
    Draft,
    Lookup,
    Pass,
    Sampling,
    Token,
    distribution,
    speculate,
    speculative,
    stream,
    window_start,
)
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.nn.specs import ALiBi, Learned, NoPosition, Position, RelativeBias, Rotary, Sinusoidal

POSITIONS = [Learned(), Sinusoidal(), Rotary(), ALiBi(), RelativeBias(n_buckets=8, max_distance=9), NoPosition()]


def mixed_rule(share: float, max_len: int = CONTEXT) -> Rule:
    """Return the rule of a draft that is often right."""
    return lambda tokens: (1 - share) * RULE(tokens) + share * OTHER_RULE(tokens)


def tokens_by_row(passes: Iterator[Pass], count: int) -> list[list[Token]]:
    rows: list[list[Token]] = [[] for _ in range(count)]
    for pass_tokens in passes:
        assert any(pass_tokens), "a pass returned no token"
        for row, tokens in zip(rows, pass_tokens, strict=True):
            assert not (row and row[-1].finish and tokens), "a row continues after its end"
            row.extend(tokens)
    return rows


def stream_by_row(model: ToyDecoder | DecoderOnly, prompts: Sequence[Sequence[int]], *args: Any, **options: Any) -> Any:
    rows: list[list[Token]] = [[] for _ in prompts]
    for column in stream(model, prompts, *args, **options):
        for row, token in zip(rows, column, strict=True):
            row.extend([token] if token else [])
    return rows


def assert_alike(found: list[list[Token]], expected: list[list[Token]]) -> None:
    assert [[(t.id, t.finish) for t in row] for row in found] == [[(t.id, t.finish) for t in row] for row in expected]
    for found_row, expected_row in zip(found, expected, strict=True):
        assert [t.logprob for t in found_row] == pytest.approx([t.logprob for t in expected_row], abs=1e-4)


# The distribution -----------------------------------------------------------------------------------------------------

SMALL, LONG, DRAWS = 4, 3, 700
TARGET, DRAFT = random_rule(SMALL, 8, seed=5, scale=0.9), random_rule(SMALL, 8, seed=6, scale=0.9)
KINDS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.3},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "all": {"temperature": 1.3, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.3},
}


def exact(sampling: Sampling, prompt: list[int], max_len: int) -> dict[tuple[int, ...], float]:
    """Return the probability of each text of LONG tokens after the prompt, by enumeration."""
    probabilities: dict[tuple[int, ...], float] = {}
    for text in itertools.product(range(SMALL), repeat=LONG):
        row, probability = list(prompt), 1.0
        for token in text:
            seen_mask = torch.tensor([[id in row for id in range(SMALL)]])
            logits = TARGET(row[window_start(len(row), max_len) :])[None]
            probability *= float(distribution(logits, sampling, seen_mask)[0, token])
            row.append(token)
        probabilities[text] = probability
    return probabilities


def surprise(sampling: Sampling, *, max_len: int = 8, draft_len: int = 8, tokens: int = 3) -> float:
    """Return by how many standard deviations chi-square deviates from its mean over many texts."""
    prompt, model = [1, 2], AheadDecoder(TARGET, max_len)
    speculation = Draft(model=AheadDecoder(DRAFT, draft_len), tokens=tokens)
    rows = tokens_by_row(
        speculate(model, [prompt] * DRAWS, sampling, speculation=speculation, seeds=range(DRAWS)), DRAWS
    )
    counts = Counter(tuple(token.id for token in row) for row in rows)
    expected = {text: DRAWS * p for text, p in exact(sampling, prompt, max_len).items()}
    assert all(expected[text] > 0 for text in counts)
    cells = [(counts[text], e) for text, e in expected.items() if e >= 5]
    rare_texts = [(counts[text], e) for text, e in expected.items() if 0 < e < 5]
    if sum(e for _, e in rare_texts) >= 5:
        cells.append((sum(n for n, _ in rare_texts), sum(e for _, e in rare_texts)))
    square, freedom = sum((n - e) ** 2 / e for n, e in cells), len(cells) - 1
    return (square - freedom) / math.sqrt(2 * freedom)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("plain", "top_p", "all") else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in KINDS],
)
def test_frequencies_of_texts_match_the_models_distribution(kind: str) -> None:
    assert surprise(Sampling(max_new_tokens=LONG, **KINDS[kind])) < 3.5


@pytest.mark.slow
def test_frequencies_match_when_windows_move() -> None:
    assert surprise(Sampling(max_new_tokens=LONG), max_len=3, draft_len=2, tokens=2) < 3.5


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "rejected: sampled from the model's distribution": ("residual", lambda p, q: p),
    "rejected: sampled from the draft's distribution": ("residual", lambda p, q: q),
    "rejected: sampled from the absolute difference": ("residual", lambda p, q: (p - q).abs()),
    "always accepted if possible": ("_draw_uniform", lambda generator: 0.0),
    "accepted only if likelier in the model": ("_draw_uniform", lambda generator: 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", sampled(FAULTS, keep=(0, 3)))
def test_fault_in_acceptance_or_resampling_is_detected(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, *FAULTS[fault])
    assert surprise(Sampling(max_new_tokens=LONG)) > 10


@settings(max_examples=30)
@given(data=st.data(), size=st.integers(2, 9))
def test_acceptance_and_resampling_add_up_to_the_models_distribution(data: Any, size: int) -> None:
    weights = st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)
    p, q = (torch.tensor(data.draw(weights), dtype=torch.float64) for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    accepted = torch.minimum(p, q)
    residual = speculative.residual(p, q)
    torch.testing.assert_close(accepted + (1 - accepted.sum()) * residual / residual.sum(), p)


def test_equal_distributions_reject_nothing_and_residual_is_never_empty() -> None:
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert torch.equal(speculative.residual(p, p), p)


# The same text --------------------------------------------------------------------------------------------------------

prompts = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3 * CONTEXT), min_size=1, max_size=5)
samplings = st.builds(
    Sampling,
    max_new_tokens=st.integers(1, 20),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([None, 3]),
    top_p=st.sampled_from([None, 0.8]),
    min_p=st.sampled_from([None, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
)


@pytest.mark.slow
@settings(max_examples=15)
@given(prompts=prompts, sampling=samplings, data=st.data())
def test_lookup_matches_stream_with_the_same_seeds(prompts: list[list[int]], sampling: Sampling, data: Any) -> None:
    seeds = data.draw(st.lists(st.integers(0, 9), min_size=len(prompts), max_size=len(prompts)))
    stop_options = {"stop_ids": {data.draw(st.integers(0, VOCAB))}, "forbidden": {data.draw(st.integers(1, VOCAB - 1))}}
    lookup = Lookup(ngram=data.draw(st.integers(1, 3)), tokens=data.draw(st.integers(1, 9)))
    max_len = data.draw(st.integers(1, CONTEXT))
    model = AheadDecoder(RULE, max_len)
    rows = tokens_by_row(
        speculate(model, prompts, sampling, speculation=lookup, seeds=seeds, **stop_options), len(prompts)
    )
    assert_alike(rows, stream_by_row(model, prompts, sampling, seeds=seeds, **stop_options))


@pytest.mark.slow
@settings(max_examples=15)
@given(prompts=prompts, sampling=samplings, data=st.data())
def test_row_has_the_same_result_in_any_batch_and_greedy_matches_stream(
    prompts: list[list[int]], sampling: Sampling, data: Any
) -> None:
    seeds = data.draw(st.lists(st.integers(0, 9), min_size=len(prompts), max_size=len(prompts)))
    stop_options = {"stop_ids": {data.draw(st.integers(0, VOCAB))}, "forbidden": {data.draw(st.integers(1, VOCAB - 1))}}
    draft = AheadDecoder(mixed_rule(0.2), data.draw(st.integers(1, CONTEXT)))
    speculation = Draft(model=draft, tokens=data.draw(st.integers(1, 9)))
    model = AheadDecoder(RULE, data.draw(st.integers(1, CONTEXT)))
    batched = tokens_by_row(
        speculate(model, prompts, sampling, speculation=speculation, seeds=seeds, **stop_options), len(prompts)
    )
    separate = [
        tokens_by_row(speculate(model, [prompt], sampling, speculation=speculation, seeds=[seed], **stop_options), 1)[0]
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    assert_alike(batched, separate)
    for prompt, row in zip(prompts, batched, strict=True):
        text = list(prompt)
        for token in row:
            logits = RULE(text[window_start(len(text), model.max_len) :])
            assert token.id not in stop_options["forbidden"]
            assert token.logprob == pytest.approx(logits.log_softmax(-1)[token.id].item(), abs=1e-4)
            text.append(token.id)
    if sampling.temperature == 0:
        assert_alike(batched, stream_by_row(model, prompts, sampling, **stop_options))


def tiny(position: Position, max_len: int, *, seed: int = 1, layers: int = 2) -> DecoderOnly:
    spec = StackSpec(d_model=24, n_heads=3, n_layers=layers, position=position)
    model = DecoderOnly(DecoderOnlySpec(vocab_size=VOCAB, max_len=max_len, stack=spec), seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # spread the logits, so that rounding changes no token
    return model


def check_same_with_speculation(position: Position, prompts: list[list[int]], data: Any) -> None:
    model = tiny(position, data.draw(st.sampled_from([5, 13, 31])))
    drafts = [tiny(position, 13, seed=2, layers=1), tiny(Rotary(), 5, seed=1), model]
    tokens = data.draw(st.integers(1, 7))
    greedy, sampling = (Sampling(max_new_tokens=data.draw(st.integers(1, 17)), temperature=t) for t in (0.0, 1.0))
    stop_options = {"stop_ids": {data.draw(st.integers(0, VOCAB))}}
    speculation = Draft(model=data.draw(st.sampled_from(drafts)), tokens=tokens)
    rows = tokens_by_row(speculate(model, prompts, greedy, speculation=speculation, **stop_options), len(prompts))
    assert_alike(rows, stream_by_row(model, prompts, greedy, **stop_options))
    lookup = Lookup(ngram=data.draw(st.integers(1, 3)), tokens=tokens)
    rows = tokens_by_row(speculate(model, prompts, sampling, speculation=lookup, **stop_options), len(prompts))
    assert_alike(rows, stream_by_row(model, prompts, sampling, **stop_options))


@pytest.mark.parametrize("position", POSITIONS, ids=repr)
@settings(max_examples=1)
@given(prompts=prompts, data=st.data())
def test_real_models_generate_the_same_with_draft_tokens(
    position: Position, prompts: list[list[int]], data: Any
) -> None:
    check_same_with_speculation(position, prompts, data)


@pytest.mark.exhaustive
@pytest.mark.parametrize("position", POSITIONS, ids=repr)
@settings(max_examples=25)
@given(prompts=prompts, data=st.data())
def test_real_models_generate_the_same_in_many_cases(position: Position, prompts: list[list[int]], data: Any) -> None:
    check_same_with_speculation(position, prompts, data)


@pytest.mark.parametrize("position", POSITIONS, ids=repr)
def test_rejected_lookahead_tokens_are_never_visible(position: Position) -> None:
    model = tiny(position, 13).eval()
    texts = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5]]
    prompt, lengths = torch.tensor([[1, 2, 3], [9, 0, 0]]), torch.tensor([3, 1])
    with torch.inference_mode():
        _, state = model.start(prompt, lengths, capacity=13)
        model.read_ahead(torch.tensor([[4, 0, 0, 0, 0, 0, 0], [8, 7, 10, 10, 10, 10, 10]]), state)
        state.advance(torch.tensor([4, 2]))
        state.advance(torch.tensor([-3, 0]))  # the rows now contain 1 2 3 4 and 9 8 7
        logits = model.read_ahead(torch.tensor([[5, 6, 7, 8], [6, 5, 0, 0]]), state)
        for row, text, begin, count in zip(logits, texts, (4, 3), (4, 2), strict=True):
            whole = model(torch.tensor([text]))[0, begin:]
            torch.testing.assert_close(row[:count], whole, rtol=1e-4, atol=1e-4)


def test_full_row_is_unchanged_next_to_a_row_with_draft_tokens() -> None:
    model = tiny(Learned(), 5)
    rows = [[1, 2, 3, 4], [1]]
    sampling, lookup = Sampling(max_new_tokens=9, temperature=0), Lookup(ngram=1, tokens=8)
    assert_alike(
        tokens_by_row(speculate(model, rows, sampling, speculation=lookup), 2), stream_by_row(model, rows, sampling)
    )


# The cost -------------------------------------------------------------------------------------------------------------


def test_always_right_draft_needs_one_pass_for_its_tokens_and_one_more() -> None:
    rule = random_rule(VOCAB, 60)
    model, draft = AheadDecoder(rule, 60), AheadDecoder(rule, 60)
    sampling = Sampling(max_new_tokens=1 + 4 * 5 + 2)
    passes = list(speculate(model, [[1, 2]], sampling, speculation=Draft(model=draft, tokens=4)))
    assert [len(row) for (row,) in passes] == [1, 5, 5, 5, 5, 2]
    assert model.calls == [("start", 1)] + [("read_ahead", 1)] * 5
    assert model.tokens_read == [5, 5, 5, 5, 2]  # one certain token, then the draft tokens
    assert draft.calls == [("start", 1)] + [("read_ahead", 1)] * (3 + 4 * 3 + 1)
    assert draft.tokens_read == [1, 1, 1] + [2, 1, 1, 1] * 3 + [2]  # its own last draft token, and the next token


def test_always_wrong_draft_needs_as_many_passes_as_no_draft() -> None:
    model = AheadDecoder(script_rule(VOCAB, [3] * 30), 40)
    draft = AheadDecoder(script_rule(VOCAB, [4] * 30), 40)
    passes = list(speculate(model, [[1]], Sampling(max_new_tokens=9), speculation=Draft(model=draft, tokens=3)))
    assert [[token.id for token in row] for (row,) in passes] == [[3]] * 9
    assert len(model.calls) == 9


def test_draft_proposes_nothing_after_the_end() -> None:
    script = script_rule(VOCAB, [5, 6, 0, 7, 7, 7])
    model, draft = AheadDecoder(script, 40), AheadDecoder(script, 40)
    speculation = Draft(model=draft, tokens=5)
    rows = tokens_by_row(speculate(model, [[1]], Sampling(max_new_tokens=6), speculation=speculation, stop_ids={0}), 1)
    assert [(token.id, token.finish) for token in rows[0]] == [(5, None), (6, None), (0, "eos")]
    assert model.tokens_read == [3]
    assert draft.calls == [("start", 1), ("read_ahead", 1)]


def test_lookup_continues_repeated_text_beyond_the_written_tokens() -> None:
    model = AheadDecoder(lambda tokens: torch.eye(VOCAB)[(tokens[-1] + 1) % 3] * 90, 80)
    passes = list(speculate(model, [[0, 1, 2, 0]], Sampling(max_new_tokens=20), speculation=Lookup(ngram=2, tokens=8)))
    assert [len(row) for (row,) in passes] == [1, 9, 9, 1]
    assert [token.id for (row,) in passes for token in row] == [(n + 1) % 3 for n in range(20)]


def test_last_of_several_occurrences_is_used() -> None:
    prompt = [1, 2, 5, 7, 1, 2, 6, 8, 0, 1]
    model = AheadDecoder(script_rule(VOCAB, [2, 6, 8, 3, 3], prompt=10), 40)
    passes = list(speculate(model, [prompt], Sampling(max_new_tokens=5), speculation=Lookup(ngram=2, tokens=3)))
    assert [[token.id for token in row] for (row,) in passes] == [[2], [6, 8, 3], [3]]
    assert model.tokens_read == [4, 1]  # 2, then the continuation of 1 2: 6 8 0; 8 3 has none


def test_text_is_read_again_only_when_the_window_moves() -> None:
    model = AheadDecoder(RULE, CONTEXT)
    list(speculate(model, [[1, 2, 3]], Sampling(max_new_tokens=14), speculation=Draft(model=model, tokens=9)))
    # 3 to 7 tokens are visible, then 4 to 7, then again 4 to 7: the same windows as in `stream`
    plain = ToyDecoder(RULE, CONTEXT)
    list(stream(plain, [[1, 2, 3]], Sampling(max_new_tokens=14)))
    assert model.capacities[::2] == plain.capacities


def test_draft_with_a_shorter_context_proposes_up_to_its_limit() -> None:
    model, draft = AheadDecoder(RULE, CONTEXT), AheadDecoder(mixed_rule(0.2), 5)
    sampling = Sampling(max_new_tokens=20)
    rows = tokens_by_row(speculate(model, [[1, 2]], sampling, speculation=Draft(model=draft, tokens=5), seeds=[3]), 1)
    assert len(rows[0]) == 20
    assert max(draft.capacities) == 5  # and its cache rejects more
    assert "read_ahead" in {name for name, _ in draft.calls}


def test_draft_is_filtered_like_the_model_with_its_own_tokens_in_sight() -> None:
    model, draft = (AheadDecoder(lambda tokens: torch.linspace(5.0, 4.0, VOCAB), 40) for _ in range(2))
    sampling = Sampling(max_new_tokens=9, temperature=0, repetition_penalty=1.5)  # tokens are not repeated
    passes = list(speculate(model, [[10]], sampling, speculation=Draft(model=draft, tokens=3), forbidden={4}))
    assert [[token.id for token in row] for (row,) in passes] == [[0], [1, 2, 3, 5], [6, 7, 8, 9]]


def test_rows_leave_the_batch_when_they_or_the_caller_end() -> None:
    scripts = {1: [5, 0, 9, 9], 2: [5, 6, 5, 6, 0], 3: [5, 5, 5, 5, 5]}

    def rule(tokens: list[int]) -> Tensor:
        return script_rule(VOCAB, scripts[tokens[0]])(tokens)

    model, ended_rows, passes = AheadDecoder(rule, 9), set[int](), []
    speculation = Draft(model=AheadDecoder(rule, 9), tokens=1)
    for pass_tokens in speculate(
        model,
        [[1], [2], [3]],
        Sampling(max_new_tokens=5),
        speculation=speculation,
        stop_ids={0},
        finished_rows=ended_rows,
    ):
        passes.append([[token.id for token in tokens] for tokens in pass_tokens])
        if len(passes) == 2:
            ended_rows.add(2)
    assert passes == [[[5], [5], [5]], [[0], [6, 5], [5, 5]], [[], [6, 0], []]]
    assert model.calls == [("start", 3), ("read_ahead", 3), ("read_ahead", 1)]


def test_samples_of_one_prompt_are_read_once() -> None:
    model = AheadDecoder(RULE, CONTEXT)
    list(speculate(model, [[4, 5]] * 9 + [[6]], Sampling(max_new_tokens=1), speculation=Lookup(), seeds=range(10)))
    assert model.calls == [("start", 2)]


def test_empty_input_gives_no_output() -> None:
    model = AheadDecoder(RULE, CONTEXT)
    assert list(speculate(model, [[1]], Sampling(max_new_tokens=0), speculation=Lookup())) == []
    assert list(speculate(model, [], Sampling(), speculation=Lookup())) == []
    assert model.calls == []


def test_modes_of_both_models_are_restored() -> None:
    model, draft = AheadDecoder(RULE, CONTEXT).train(), AheadDecoder(OTHER_RULE, CONTEXT).train()
    for _ in speculate(model, [[1]], Sampling(max_new_tokens=9), speculation=Draft(model=draft)):
        assert model.training
        assert draft.training
        assert not torch.is_inference_mode_enabled()


def test_wrong_arguments_are_reported() -> None:
    model = AheadDecoder(RULE, CONTEXT)
    with pytest.raises(ValueError, match="prompt 2 of 2 is empty; pass at least one token"):
        speculate(model, [[1], []], Sampling(), speculation=Lookup())
    with pytest.raises(ValueError, match="expected 2 seeds, one per prompt, got 1"):
        speculate(model, [[1], [2]], Sampling(), speculation=Lookup(), seeds=[0])
    with pytest.raises(ValueError, match="ngram=0 must be at least 1"):
        Lookup(ngram=0)
    for make in (lambda: Lookup(tokens=0), lambda: Draft(model=model, tokens=0)):
        with pytest.raises(ValueError, match="tokens=0 must be at least 1"):
            make()
    with pytest.raises(UserError, match=r"sizes differ: draft 5, model 11; .* trained with the model's tokenizer"):
        speculate(model, [[1]], Sampling(), speculation=Draft(model=AheadDecoder(random_rule(5, 9), 9, vocab_size=5)))


def test_diverged_model_is_reported() -> None:
    diverging = AheadDecoder(lambda tokens: torch.full((VOCAB,), math.nan if len(tokens) > 1 else 0.0), CONTEXT)
    for model, speculation in ((diverging, Lookup(ngram=1)), (diverging, Draft(model=AheadDecoder(RULE, CONTEXT)))):
        with pytest.raises(UserError, match="not numbers"):
            list(speculate(model, [[1]], Sampling(), speculation=speculation))

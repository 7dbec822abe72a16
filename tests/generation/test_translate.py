import math
from typing import Any

import pytest
import torch
from byte_tokenizer import ByteTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_decoder import ToyTranslator, random_source_rule

from sampled_cases import sampled
from tercet.config import UserError
from tercet.generation import Beam, Ensemble, Sampling, Translation, translate, translate_stream

pytestmark = pytest.mark.threads

TOKENIZER = ByteTokenizer((b" the", b"\xf0\x9f", b"\x99\x82", "né".encode()), bos=True)
MAX_LEN = 24
RULE = random_source_rule(TOKENIZER.vocab_size, MAX_LEN, seed=1, scale=1.5)
TEXTS = ["abc", "", "a longer line", "né 🙂", "   ", "abc", "x", "  abc\t", "line\u2028inside", "y\r\n"]


def toy(rule=RULE) -> ToyTranslator:
    return ToyTranslator(rule, MAX_LEN, TOKENIZER.vocab_size)


def saying(*script: int) -> ToyTranslator:
    """Return a model that writes these ids for any source, and then the end."""

    def rule(source: list[int], tokens: list[int]) -> torch.Tensor:
        logits = torch.zeros(TOKENIZER.vocab_size)
        logits[[*script, *[TOKENIZER.eos_id] * 30][len(tokens) - 1]] = 50.0
        return logits

    return toy(rule)


def best(texts: list[str], search: Any = Beam(size=3), **settings: Any) -> list[Translation]:  # noqa: B008
    return [answers[0] for answers in translate(toy(), TOKENIZER, texts, search, **settings)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "search", sampled([Beam(size=3, n_best=2), Sampling(seed=5), Beam(size=1), Sampling(temperature=0)], keep=(0, 1))
)
def test_every_line_has_the_same_translation_in_any_batch(search: Any) -> None:
    batched = translate(toy(), TOKENIZER, TEXTS, search)
    assert len(batched) == len(TEXTS)
    for budget in (1, 40, 10**6):
        assert translate(toy(), TOKENIZER, TEXTS, search, batch_tokens=budget) == batched
    assert translate(toy(), TOKENIZER, TEXTS[::-1], search) == batched[::-1]
    for pool in (1, 3, 100):
        assert list(translate_stream(toy(), TOKENIZER, iter(TEXTS), search, pool=pool)) == batched
    for text, answers in zip(TEXTS, batched, strict=True):
        assert answers == translate(toy(), TOKENIZER, [text], search)[0]
        assert {answer.source for answer in answers} == {text.strip()}


def test_sources_end_with_eos_and_targets_start_with_bos() -> None:
    model = saying(*b"hi")
    (answer,) = translate(model, TOKENIZER, [" abc "])[0]
    assert model.sources == [[[*b"abc", TOKENIZER.eos_id]]]
    assert model.caches[0].rows[0][0] == TOKENIZER.bos_id
    assert (answer.source, answer.text, answer.finish, answer.truncated) == ("abc", "hi", "eos", False)
    assert answer.ids == (*b"hi", TOKENIZER.eos_id)
    assert answer.logprobs == pytest.approx([0.0] * 3, abs=1e-6)


def test_empty_line_is_translated_without_the_model() -> None:
    model = toy()
    empty = Translation(source="", text="", ids=(), logprobs=(), logprob=0.0, score=0.0, finish="eos", truncated=False)
    assert translate(model, TOKENIZER, ["", " \t\u00a0"], Beam(size=3, n_best=3)) == [[empty]] * 2
    assert translate(model, TOKENIZER, []) == []
    assert model.calls == []


def test_too_long_line_is_cut_and_marked() -> None:
    model = saying(*b"hi")
    exact, too_long = "a" * (MAX_LEN - 1), "a" * MAX_LEN
    answers = translate(model, TOKENIZER, [exact, too_long])
    assert [answer.truncated for (answer,) in answers] == [False, True]
    assert model.sources[0] == [[*exact.encode(), TOKENIZER.eos_id]]  # both are read once
    assert answers[0][0].ids == answers[1][0].ids


def test_lines_are_batched_by_length_within_the_budget() -> None:
    model = saying(*b"hi")
    texts = ["a" * n for n in (1, 9, 2, 19, 3, 9, 4, 5)]
    translate(model, TOKENIZER, texts, Beam(size=2), batch_tokens=40)
    assert [sorted((len(source) for source in batch), reverse=True) for batch in model.sources] == [
        [20],
        [10],  # the other line of nine characters is the same
        [6, 5, 4],
        [3, 2],
    ]
    assert [count for name, count in model.calls if name == "step"][:2] == [2, 2]


@pytest.mark.parametrize("search", [Beam(size=3, n_best=3), Sampling(seed=2)])
def test_padding_bos_and_unknown_are_never_generated(search: Any) -> None:
    unknown = ByteTokenizer(bos=True)
    unknown.unk_id = ord("u")
    specials = [unknown.pad_id, unknown.bos_id]

    def rule(source: list[int], tokens: list[int]) -> torch.Tensor:
        logits = torch.zeros(unknown.vocab_size)
        logits[[*specials, ord("u")]] = 9.0
        logits[[ord("v"), ord("w")]] = 5.0
        logits[unknown.eos_id] = 1.0
        return logits

    model = ToyTranslator(rule, MAX_LEN, unknown.vocab_size)
    for answer in translate(model, unknown, ["abc"], search)[0]:
        assert not {*specials, ord("u")} & set(answer.ids)
        logprobs = [rule([], []).log_softmax(-1)[token].item() for token in answer.ids]
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-5)
    for answer in translate(model, unknown, ["abc"], search, allow_unknown=True)[0]:
        assert not set(specials) & set(answer.ids)
        assert ord("u") in answer.ids


def test_temperature_zero_is_greedy() -> None:
    greedy, cold = (best(TEXTS, search) for search in (Beam(size=1), Sampling(temperature=0)))
    for answer, reference in zip(greedy, cold, strict=True):
        assert (answer.text, answer.ids, answer.finish) == (reference.text, reference.ids, reference.finish)
        assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-5)
        assert answer.score == pytest.approx(reference.score, abs=1e-5)


def test_samples_follow_their_seed_and_prompts_are_read_once() -> None:
    assert best(TEXTS, Sampling(seed=1)) != best(TEXTS, Sampling(seed=2))
    model = toy()
    (first,), (second,) = translate(model, TOKENIZER, ["abc", "abc"], Sampling())
    assert first == second
    assert model.calls[0] == ("start", 1)


def test_lengths_follow_each_lines_own_source() -> None:
    model = toy(lambda source, tokens: torch.zeros(TOKENIZER.vocab_size))
    short = Beam(size=1, max_ratio=1.0, max_extra=1)
    answers = translate(model, TOKENIZER, ["a", "abcdef"], short)
    assert [(len(answer.ids), answer.finish) for (answer,) in answers] == [(3, "length"), (8, "length")]
    samples = translate(model, TOKENIZER, ["a", "abcdef"], Sampling(temperature=0))
    assert [(len(answer.ids), answer.finish) for (answer,) in samples] == [(14, "length"), (24, "length")]
    short_answers = translate(model, TOKENIZER, ["a", "abcdef"], Sampling(temperature=0, max_new_tokens=5))
    assert [len(answer.ids) for (answer,) in short_answers] == [5, 5]
    empty_answers = translate(model, TOKENIZER, ["a"], Sampling(max_new_tokens=0))
    assert [(answer.ids, answer.finish, answer.score) for (answer,) in empty_answers] == [((), "length", 0.0)]
    long_answer = translate(model, TOKENIZER, ["a"], Beam(size=2, min_extra=4, max_extra=9))[0][0]
    assert len(long_answer.ids) >= 4


@pytest.mark.parametrize("search", [Beam(size=3, n_best=2), Sampling(seed=2)])
def test_translation_starts_with_its_prefix(search: Any) -> None:
    prefixes = ["", "so", "né 🙂"]
    answers = translate(toy(), TOKENIZER, ["abc", "abc", ""], search, prefixes=prefixes)
    for prefix, prefix_answers in zip(prefixes, answers, strict=True):
        assert all(answer.text.startswith(prefix) for answer in prefix_answers)
    assert answers[0] == translate(toy(), TOKENIZER, ["abc"], search)[0]
    assert answers[2][0].ids == ()
    model = saying(*b"sofa")
    (answer,) = translate(model, TOKENIZER, ["abc"], search, prefixes=["so"])[0][:1]
    assert (answer.text, answer.ids) == ("sofa", (*b"fa", TOKENIZER.eos_id))
    assert model.caches[0].rows[0][:3] == [TOKENIZER.bos_id, *b"so"]


def test_source_and_target_may_have_two_vocabularies() -> None:
    source_tokenizer = ByteTokenizer((b"ab",))
    assert source_tokenizer.eos_id != TOKENIZER.eos_id
    model = saying(*b"hi")
    translate(model, TOKENIZER, ["abc"], source_tokenizer=source_tokenizer)
    assert model.sources == [[[*b"abc", source_tokenizer.eos_id]]]


def test_ensemble_translates() -> None:
    assert [answer.ids for answer in best(TEXTS)] == [
        answers[0].ids for answers in translate(Ensemble([toy(), toy()]), TOKENIZER, TEXTS, Beam(size=3))
    ]


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(lines=st.lists(st.text(max_size=8), max_size=9), pool=st.integers(1, 4), budget=st.integers(1, 60))
def test_any_lines_are_returned_in_order(lines: list[str], pool: int, budget: int) -> None:
    searching = {"search": Beam(size=2), "batch_tokens": budget}
    answers = list(translate_stream(toy(), TOKENIZER, lines, pool=pool, **searching))
    assert [line_answers[0].source for line_answers in answers] == [line.strip() for line in lines]
    assert all(
        (line_answers[0].ids == ()) == (line.strip() == "") for line, line_answers in zip(lines, answers, strict=True)
    )


def test_stream_reads_no_further_than_its_pool() -> None:
    read = []

    def lines():
        for number in range(100):
            read.append(number)
            yield f"line {number}"

    answers = translate_stream(toy(), TOKENIZER, lines(), Beam(size=1), pool=4)
    assert read == []
    next(answers)
    assert len(read) == 4


def test_invalid_arguments_are_rejected_before_the_first_line() -> None:
    without_start, without_end = ByteTokenizer(), ByteTokenizer(bos=True, eos=False)
    with pytest.raises(UserError, match="the target tokenizer has no beginning token"):
        translate_stream(toy(), without_start, [])
    with pytest.raises(UserError, match="the target tokenizer has no end token"):
        translate_stream(toy(), without_end, [])
    with pytest.raises(UserError, match="the source tokenizer has no end token"):
        translate_stream(toy(), TOKENIZER, [], source_tokenizer=without_end)
    with pytest.raises(ValueError, match=r"stop=\('END',\) is not supported"):
        translate_stream(toy(), TOKENIZER, [], Sampling(stop=("END",)))
    with pytest.raises(ValueError, match="batch_tokens=0 must be 1 or more"):
        translate(toy(), TOKENIZER, ["a"], batch_tokens=0)
    with pytest.raises(ValueError, match="pool=0 must be 1 or more"):
        translate_stream(toy(), TOKENIZER, [], pool=0)
    with pytest.raises(ValueError, match="expected 2 prefixes, one per text, got 1"):
        translate(toy(), TOKENIZER, ["a", "b"], prefixes=["c"])
    with pytest.raises(ValueError, match="a prefix has 25 tokens with its beginning token; the maximum is max_len=24"):
        translate(toy(), TOKENIZER, ["a"], prefixes=["c" * MAX_LEN])


def test_diverged_model_is_reported() -> None:
    model = toy(lambda source, tokens: torch.full((TOKENIZER.vocab_size,), math.nan))
    for search in (Beam(), Sampling(), Sampling(temperature=0)):
        with pytest.raises(UserError, match="diverged"):
            translate(model, TOKENIZER, ["abc"], search)

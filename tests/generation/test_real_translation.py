"""Beam search and translation with a real model, its cache and real tokenizers."""

from typing import Any

import pytest
import torch
from toy_decoder import ToyDecoder, ToyTranslator

from tercet.config import UserError
from tercet.generation import Beam, Ensemble, Sampling, beam_search, translate, translate_stream
from tercet.models import DecoderOnly, DecoderOnlySpec, Dropout, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn.specs import Position, Rotary, Sinusoidal
from tercet.tokens import BPE, Tokenizer

BOS, EOS, V, MAX_LEN = 1, 2, 17, 41
TEXTS = [
    "one fish",
    "two fish, blue fish and a red one",
    "",
    "né 🙂",
    "a fish, longer than the others by far, and blue",
    " one fish ",
]


def tiny(vocab_size: int = V, *, seed: int = 1, position: Position | None = None, **spec: Any) -> EncoderDecoder:
    stack = StackSpec(
        d_model=24, n_heads=4, n_kv_heads=2, n_layers=2, d_ff=31,
        position=position or Sinusoidal(), dropout=Dropout(residual=0.5),
    )  # fmt: skip
    return spread_logits(
        EncoderDecoder(
            EncoderDecoderSpec(vocab_size=vocab_size, max_len=MAX_LEN, encoder=stack, decoder=stack, **spec), seed=seed
        )
    )


def spread_logits(model: Any) -> Any:
    """Spread the logits, so that rounding changes no choice."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def without_kv_cache(model: EncoderDecoder) -> ToyTranslator:
    """Return the same model, which reads source and target again at every step, one row at a time."""

    logits_by_texts: dict[str, torch.Tensor] = {}

    def rule(source: list[int], tokens: list[int]) -> torch.Tensor:
        model.eval()
        if (key := f"{source} {tokens}") not in logits_by_texts:
            logits_by_texts[key] = model(torch.tensor([source]), torch.tensor([tokens]))[0, -1]
        return logits_by_texts[key]

    return ToyTranslator(rule, model.max_len, model.vocab_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "size"),
    [
        pytest.param(Sinusoidal(), 1, marks=pytest.mark.exhaustive),
        pytest.param(Sinusoidal(), 3, marks=pytest.mark.exhaustive),
        (Rotary(), 3),
    ],
    ids=["greedy", "sinusoidal", "rotary"],
)
def test_cached_search_matches_recomputing_everything(position: Position, size: int) -> None:
    """With groups, permutations, finished rows, and a growing cache."""
    model = tiny(position=position).train()
    beam = Beam(size=size, n_best=size)
    prefixes, sources = [[BOS], [BOS, 5, 6], [BOS], [BOS, 3]], [[3, 4, EOS], [5, EOS], [6, 7, 8, 9, 10, EOS], [EOS]]
    settings: Any = {
        "eos_id": EOS,
        "sources": sources,
        "max_new_tokens": [20, 7, 38, 11],
        "min_new_tokens": [5, 5, 36, 5],
    }
    found = beam_search(model, prefixes, beam, **settings)
    assert model.training
    expected = beam_search(without_kv_cache(model), prefixes, beam, **settings)
    assert (
        max(len(hypothesis.ids) for hypotheses in found for hypothesis in hypotheses) > 33
    )  # the cache has grown twice
    for hypotheses, references in zip(found, expected, strict=True):
        assert [(hypothesis.ids, hypothesis.finish) for hypothesis in hypotheses] == [
            (hypothesis.ids, hypothesis.finish) for hypothesis in references
        ]
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            assert hypothesis.logprobs == pytest.approx(reference.logprobs, abs=1e-3)
            assert hypothesis.score == pytest.approx(reference.score, abs=1e-4)


@pytest.mark.slow
def test_beam_search_works_with_a_language_model() -> None:
    stack = StackSpec(d_model=24, n_heads=3, n_layers=2)
    model = spread_logits(DecoderOnly(DecoderOnlySpec(vocab_size=V, max_len=29, stack=stack), seed=3)).eval()
    prompts = [[1], [3, 4, 5, 6, 7], [8, 9]]
    settings: Any = {"beam": Beam(size=4, n_best=4), "eos_id": EOS, "max_new_tokens": 19}
    found = beam_search(model, prompts, **settings)
    expected = beam_search(ToyDecoder(lambda tokens: model(torch.tensor([tokens]))[0, -1], 29), prompts, **settings)
    assert [[hypothesis.ids for hypothesis in one_prompt] for one_prompt in found] == [
        [hypothesis.ids for hypothesis in one_prompt] for one_prompt in expected
    ]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(BPE(vocab_size=300, bos=True, pad=True), ["\n".join(TEXTS) * 20])


SHORT: Any = {"max_ratio": 0.5, "max_extra": 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [
        pytest.param(Beam(size=3, n_best=2, **SHORT), marks=pytest.mark.exhaustive),
        pytest.param(Beam(size=1), marks=pytest.mark.exhaustive),
        pytest.param(Beam(size=2, n_best=2, coverage=0.3, **SHORT), marks=pytest.mark.exhaustive),
        Sampling(seed=5, max_new_tokens=9),
    ],
    ids=["beam", "greedy", "coverage", "sample"],
)
def test_line_has_the_same_translation_in_any_batch(tokenizer: Tokenizer, search: Any) -> None:
    model = tiny(tokenizer.vocab_size)
    batched = translate(model, tokenizer, TEXTS, search)
    batch_results = [
        translate(model, tokenizer, TEXTS, search, batch_tokens=1),
        translate(model, tokenizer, TEXTS, search, batch_tokens=90),
        translate(model, tokenizer, TEXTS[::-1], search)[::-1],
        list(translate_stream(model, tokenizer, TEXTS, search, pool=2)),
    ]
    for batch_result in batch_results:
        for answers, references in zip(batched, batch_result, strict=True):
            assert [(answer.ids, answer.text) for answer in answers] == [
                (answer.ids, answer.text) for answer in references
            ]
            for answer, reference in zip(answers, references, strict=True):
                assert answer.logprob == pytest.approx(reference.logprob, abs=1e-4)
                assert answer.score == pytest.approx(reference.score, abs=1e-4)
    assert batched[0] == batched[5]
    assert [answers[0].truncated for answers in batched] == [len(tokenizer.encode(text)) > 40 for text in TEXTS]
    for answers in batched:
        for answer in answers:
            assert not set(answer.ids) & (tokenizer.special_ids - {tokenizer.eos_id})
            assert answer.text == tokenizer.decode(answer.ids)


@pytest.mark.slow
def test_greedy_beams_and_samples_at_zero_agree(tokenizer: Tokenizer) -> None:
    model = tiny(tokenizer.vocab_size)
    greedy, cold = (
        translate(model, tokenizer, TEXTS[:3], search) for search in (Beam(size=1), Sampling(temperature=0))
    )
    assert [answer.ids for (answer,) in greedy] == [answer.ids for (answer,) in cold]
    pair = translate(Ensemble([model, model]), tokenizer, TEXTS[:3], Beam(size=1))
    assert [answer.ids for (answer,) in greedy] == [answer.ids for (answer,) in pair]


def test_translations_start_with_their_prefixes(tokenizer: Tokenizer) -> None:
    prefixes = ["blue", "", "né 🙂", "two fish", "", ","]
    answers = translate(tiny(tokenizer.vocab_size), tokenizer, TEXTS, Beam(size=2, **SHORT), prefixes=prefixes)
    assert all(answer.text.startswith(prefix) for prefix, (answer,) in zip(prefixes, answers, strict=True))


def test_non_finite_weights_are_reported(tokenizer: Tokenizer) -> None:
    model = tiny(tokenizer.vocab_size)
    with torch.no_grad():
        next(model.decoder.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="diverged"):
        translate(model, tokenizer, TEXTS)

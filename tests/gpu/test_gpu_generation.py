"""Texts, translations and vectors on a GPU in fp32 equal those on the CPU, independent of the batch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small import POSITIONS
from small_encoders import TEXTS, build_tokenizer, encoder
from small_translator import TOKENIZER as CHARACTERS
from small_translator import small
from small_writer import TOKENIZER, writer

import tercet
from tercet.checkpoint import TrainedModel
from tercet.encoding import fill, pseudo_scores
from tercet.evaluate import score_pairs
from tercet.generation import Beam, Draft, Lookup, Sampling, generate, translate
from tercet.nn import Rotary

PROMPTS = ["the cat", "", "a", "the dog sat on the log and more than the context holds", "the dog"]
SENTENCES = ["abc.", "a", "jihgf edcba.", "bad cab", "def ghi j."]
each_position = pytest.mark.parametrize("position", POSITIONS, ids=lambda spec: spec.kind)


@each_position
def test_greedy_tokens_are_those_of_the_cpu(position, device: torch.device) -> None:
    greedy = Sampling(max_new_tokens=20, temperature=0.0)
    model = writer(position=position)
    expected = generate(model, TOKENIZER, PROMPTS, greedy)
    found = generate(model.to(device), TOKENIZER, PROMPTS, greedy)
    assert [one.ids for one in found] == [one.ids for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


@each_position
def test_samples_depend_on_the_seed_and_not_on_neighbors(position, device: torch.device) -> None:
    model = writer(position=position).to(device)

    def texts(prompts: list[str], seed: int) -> list[tuple[int, ...]]:
        sampling = Sampling(max_new_tokens=12, seed=seed, temperature=0.9, top_p=0.95)
        return [one.ids for one in generate(model, TOKENIZER, prompts, sampling)]

    together = texts(PROMPTS, 5)
    assert texts(PROMPTS, 5) == together
    assert [texts([prompt], 5)[0] for prompt in PROMPTS] == together
    assert texts(PROMPTS, 6) != together


@pytest.mark.parametrize("guesses", ["draft", "lookup"])
def test_draft_tokens_do_not_change_greedy_tokens(guesses: str, device: torch.device) -> None:
    greedy = Sampling(max_new_tokens=20, temperature=0.0)
    model = writer(position=Rotary()).to(device)
    expected = generate(model, TOKENIZER, PROMPTS, greedy)
    how = (
        Draft(model=writer(position=Rotary()).to(device), tokens=3) if guesses == "draft" else Lookup(ngram=1, tokens=4)
    )
    found = generate(model, TOKENIZER, PROMPTS, greedy, speculation=how)
    assert [one.ids for one in found] == [one.ids for one in expected]
    sampled = Sampling(max_new_tokens=20, seed=3, temperature=0.9, top_p=0.95, repetition_penalty=1.1)
    alone = [generate(model, TOKENIZER, [prompt], sampled, speculation=how)[0].ids for prompt in PROMPTS]
    assert [one.ids for one in generate(model, TOKENIZER, PROMPTS, sampled, speculation=how)] == alone


def test_streams_of_the_engine_equal_separate_texts(device: torch.device) -> None:
    model = writer(position=Rotary()).to(device)
    run = tercet.Run(trained_model=TrainedModel.wrap(model, TOKENIZER, folder=Path("runs/mine")))
    with tercet.Engine(run) as engine:
        streams = [
            engine.submit(prompt, seed=seed, max_new_tokens=20, temperature=0.9) for seed, prompt in enumerate(PROMPTS)
        ]
        found = [stream.text() for stream in streams]
    sampling = [Sampling(max_new_tokens=20, seed=seed, temperature=0.9) for seed in range(len(PROMPTS))]
    expected = [generate(model, TOKENIZER, [text], how)[0].text for text, how in zip(PROMPTS, sampling, strict=True)]
    assert found == expected


@pytest.mark.parametrize("size", [1, 5])
def test_translations_are_those_of_the_cpu(size: int, device: torch.device) -> None:
    model, beam = small(seed=2), Beam(size=size)
    expected = translate(model, CHARACTERS, SENTENCES, beam)
    found = translate(model.to(device), CHARACTERS, SENTENCES, beam)
    assert [one[0].text for one in found] == [one[0].text for one in expected]
    alone = [translate(model, CHARACTERS, [sentence], beam)[0][0].text for sentence in SENTENCES]
    assert alone == [one[0].text for one in found]


def test_vectors_are_those_of_the_cpu(device: torch.device) -> None:
    words = build_tokenizer()
    run = tercet.Run(trained_model=TrainedModel.wrap(encoder(words.vocab_size), words, folder=Path("runs/mine")))
    expected = run.embed(TEXTS)
    found = run.to(device).embed(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(np.stack([run.embed(text) for text in TEXTS]), expected, atol=1e-4)


def test_scores_are_those_of_the_cpu(device: torch.device) -> None:
    words, pairs = build_tokenizer(), list(zip(SENTENCES, SENTENCES[::-1], strict=True))
    masked, translator = encoder(words.vocab_size), small(seed=2)
    texts = [f"{text} [MASK]" for text in TEXTS]

    def scores() -> list[float]:
        pseudo = [one.logprob for one in pseudo_scores(masked, words, TEXTS, batch_tokens=64)]
        filled = [best.probability for one in fill(masked, words, texts, batch_tokens=64) for best in one.masks[0]]
        return [*pseudo, *filled, *(one.logprob for one in score_pairs(translator, CHARACTERS, pairs, batch_tokens=16))]

    expected = scores()
    for model in (masked, translator):
        model.to(device)
    assert scores() == pytest.approx(expected, rel=1e-4, abs=1e-4)

"""Encoding texts waits for the GPU only once, after all batches have been launched."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from small_encoders import TEXTS, build_tokenizer, encoder

from simulated_gpu import GPUTensor, numbers_in, simulated_gpu
from tercet.encoding import classify, embed, fill, pseudo_scores, tag
from tercet.models import Classifier

WORDS = build_tokenizer()
LABELS = {"texts": Classifier(labels=("a", "b")), "tokens": Classifier(labels=("a", "b"), over="tokens")}
FEW_TEXTS = TEXTS[:5]
MANY_TEXTS = [*FEW_TEXTS, *(f"the {text}" for text in FEW_TEXTS)]


def masked(texts: Sequence[str]) -> list[str]:
    return [f"{text} [MASK] sat [MASK]" for text in texts]


VERBS: dict[str, Callable[[Any, Sequence[str]], Any]] = {
    "embed": lambda model, texts: embed(model, WORDS, texts, batch_tokens=16).vectors.tolist(),
    "classify": lambda model, texts: classify(model, WORDS, texts, batch_tokens=16),
    "tag": lambda model, texts: [
        text.tags for text in tag(model, WORDS, [text.split() for text in texts], batch_tokens=16)
    ],
    "fill": lambda model, texts: fill(model, WORDS, masked(texts), batch_tokens=32),
    "fill words": lambda model, texts: fill(model, WORDS, masked(texts), only=["cat", "unbelievable"], batch_tokens=64),
    "score": lambda model, texts: pseudo_scores(model, WORDS, texts, within_word=True, batch_tokens=128),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_batches_are_launched_without_a_wait_between_them(verb: str) -> None:
    model = encoder(WORDS.vocab_size, classifier=LABELS["tokens" if verb == "tag" else "texts"])
    expected = numbers_in(VERBS[verb](model, MANY_TEXTS))
    batches: list[int] = []
    hidden = model.hidden
    model.hidden = lambda *args, **options: (batches.append(1), hidden(*args, **options))[1]
    with simulated_gpu(model) as waits:
        VERBS[verb](model, FEW_TEXTS)
        n_few = len(batches)
        assert waits == ["synchronize"]
        waits.clear()
        answers = VERBS[verb](model, MANY_TEXTS)
        assert waits == ["synchronize"]
    assert len(batches) - n_few > n_few > 1
    assert len(expected) >= len(MANY_TEXTS)
    assert numbers_in(answers) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_wait_would_be_detected() -> None:
    with simulated_gpu() as waits:
        x = GPUTensor(torch.tensor([1.0, 0.0]))
        for work in (lambda: x[x > 0], lambda: bool((x > 0).all()), x.tolist, x.cpu, lambda: (x > 0).nonzero()):
            waits.clear()
            work()
            assert waits
        with pytest.raises(AssertionError, match="add has a tensor of the CPU"):
            x + torch.ones(2)
        with pytest.raises(AssertionError, match="not pinned"):
            torch.tensor([1], device=x.device)

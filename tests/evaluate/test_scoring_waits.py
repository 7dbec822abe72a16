"""An evaluation waits for a batch on the GPU only after the next one is launched, or once at the end."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_translator import TOKENIZER, small

from simulated_gpu import numbers_in, simulated_gpu
from tercet.data import Conversations, Corpus, LabeledExamples
from tercet.evaluate import score, score_labels, score_masked, score_pairs
from tercet.evaluate.conversations import score_conversations
from tercet.models import Classifier, DecoderOnly, DecoderOnlySpec, EncoderOnly, EncoderOnlySpec, MaskedHead, StackSpec
from tercet.tokens import BPE, Tokenizer

BYTES = Tokenizer.train(BPE(vocab_size=261, pad=True, bos=True, eos=True, mask=True), [])
STACK = StackSpec(d_model=24, n_layers=1, n_heads=3, d_ff=31)
MAX_LEN = 11


def language_model() -> DecoderOnly:
    return DecoderOnly(DecoderOnlySpec(vocab_size=13, max_len=MAX_LEN, stack=STACK), seed=1).eval()


def encoder() -> EncoderOnly:
    spec = EncoderOnlySpec(
        vocab_size=BYTES.vocab_size, max_len=MAX_LEN, stack=STACK, masked_head=MaskedHead(),
        classifier=Classifier(labels=("a", "b")),
    )  # fmt: skip
    return EncoderOnly(spec, seed=1).eval()


def ids(n: int, vocab_size: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, vocab_size, n).astype(np.uint16)


def conversations(n: int) -> Conversations:
    starts = np.arange(n + 1) * 7
    answers = np.tile([False, False, True, True, False, True, True], n)
    return Conversations(ids=ids(7 * n, 13), answers=answers, starts=starts, first_answers=np.full(n, 2))


def labeled_examples(n: int) -> LabeledExamples:
    return LabeledExamples(
        ids=ids(5 * n, 200), starts=np.arange(n + 1) * 5, labels=np.arange(n) % 2, names=("a", "b"),
        over="texts", problem_type="single_label_classification",
    )  # fmt: skip


def corpus(n: int) -> Corpus:
    return Corpus(
        name="some", hash="", tokenizer=BYTES, train=ids(99, 200), validation=ids(MAX_LEN * n, 200),
        train_documents=np.array([0]), validation_documents=np.array([0]), train_bytes=1, validation_bytes=1,
    )  # fmt: skip


def pairs(n: int) -> list[tuple[str, str]]:
    return [("abc"[: 1 + number % 3], "fedc"[: 1 + number % 4]) for number in range(n)]


# For each evaluation its model, its work with n rows, and the expected waits for n batches.
EVALUATIONS: dict[str, tuple[Callable[[], Any], Callable[[Any, int], Any], Callable[[int], list[str]]]] = {
    "language": (
        language_model,
        lambda model, n: score(model, ids(1 + MAX_LEN * n, 13), n_bytes=99, batch_tokens=MAX_LEN),
        lambda n: ["event"] * n,
    ),
    "conversations": (
        language_model,
        lambda model, n: score_conversations(model, conversations(n), batch_tokens=6),
        lambda n: ["event"] * n,
    ),
    "masked": (
        encoder,
        lambda model, n: score_masked(model, BYTES, corpus(n), batch_tokens=MAX_LEN),
        lambda n: ["event"] * n,
    ),
    "labels": (
        encoder,
        lambda model, n: score_labels(model, BYTES, labeled_examples(n), batch_tokens=7),
        lambda n: ["event"] * n,
    ),
    "pairs": (
        small,
        lambda model, n: score_pairs(model, TOKENIZER, pairs(n), batch_tokens=5),
        lambda n: ["synchronize"],
    ),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_launches_do_not_wait_for_the_previous_batch(name: str) -> None:
    build, work, expected = EVALUATIONS[name]
    model = build()
    on_cpu = work(model, 5)
    order: list[str] = []
    hidden = model.hidden
    model.hidden = lambda *args, **options: (waits.append("launch"), hidden(*args, **options))[1]
    with simulated_gpu(model) as waits:
        result = work(model, 5)
        order = list(waits)
    launches = order.count("launch")
    assert launches > 2
    assert [wait for wait in order if wait != "launch"] == expected(launches)
    if "event" in order:  # each event belongs to the launch before the last one
        assert order == ["launch", *["launch", "event"] * (launches - 1), "event"]
    else:
        assert order[-1] == "synchronize"
    assert numbers_in(result) == pytest.approx(numbers_in(on_cpu), rel=1e-5)
    assert numbers_in(result)

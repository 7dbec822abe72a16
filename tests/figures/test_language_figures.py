"""Metrics of a language model, recomputed from raw text and the saved model one token at a time."""

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small_runs import CONTEXT, DOCUMENTS, HELD_OUT, ROWS

from sampled_cases import sampled
from tercet.checkpoint import LanguageModel, load_model
from tercet.checkpoint.metrics import read_metrics
from tercet.cli.main import main
from tercet.tokens import Tokenizer

SmallRun = Callable[[str], Path]


class Target(NamedTuple):
    """A predicted token, its predecessor, and the tokens that predict it."""

    token: int
    previous: int
    context: list[int]


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return [*tokenizer.encode(text), *([] if tokenizer.eos_id is None else [tokenizer.eos_id])]


def list_targets(tokenizer: Tokenizer, documents: list[str], *, separate: bool, stride: int = CONTEXT) -> list[Target]:
    """Return the tokens of the concatenated documents, with the context from the window or the document in it."""
    stream = [(number, token) for number, text in enumerate(documents) for token in encode(tokenizer, text)]
    targets, n_scored, start = list[Target](), 1, 0
    while n_scored < len(stream):
        for at in range(n_scored, min(start + CONTEXT, len(stream) - 1) + 1):
            number, token = stream[at]
            context = [context_token for of, context_token in stream[start:at] if of == number or not separate]
            if not separate or stream[at - 1][0] == number:
                targets.append(Target(token, stream[at - 1][1], context))
        n_scored, start = max(n_scored, start + CONTEXT + 1), start + stride
    return targets


def target_losses(trained_model: LanguageModel, targets: list[Target]) -> list[float]:
    model = trained_model.model.eval()
    with torch.no_grad():
        return [
            -model(torch.tensor([context]))[0, -1].double().log_softmax(-1)[token].item()
            for token, _, context in targets
        ]


def first_bytes(tokenizer: Tokenizer, text: str) -> int:
    """Return the number of bytes of a document's first token. Byte-level names have one character per byte."""
    vocabulary: dict[str, int] = json.loads(tokenizer.to_json())["model"]["vocab"]
    name = next(name for name, number in vocabulary.items() if number == tokenizer.encode(text)[0])
    return 1 if name.startswith("<0x") else len(name) if tokenizer.kind == "bpe" else len(name.encode())


def evaluate_json(run: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["evaluate", str(run), "--json", "--device", "cpu", *flags]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(ROWS, keep=(0, 1, 2, 4)))
def test_likelihood_figures(name: str, small_run: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    run, separate = small_run(name), not name.startswith("packed")
    trained_model = load_model(run / "last").require("generate")
    tokenizer = trained_model.tokenizer
    for stride in (CONTEXT, 3):
        targets = list_targets(tokenizer, HELD_OUT, separate=separate, stride=stride)
        nats = target_losses(trained_model, targets)
        text_nats = sum(x for x, target in zip(nats, targets, strict=True) if target.token != tokenizer.eos_id)
        scores = evaluate_json(run / "last", capsys, "--stride", str(stride))
        n_bytes = sum(len(text.encode()) for text in HELD_OUT)
        n_bytes -= sum(first_bytes(tokenizer, text) for text in (HELD_OUT if separate else HELD_OUT[:1]))
        mean = sum(nats) / len(nats)
        assert scores["tokens"] == len(targets)
        assert scores["bytes"] == n_bytes
        assert scores["loss_nats_per_token"] == pytest.approx(mean, rel=1e-5)
        assert scores["perplexity"] == pytest.approx(math.e**mean, rel=1e-4)
        assert scores["bits_per_byte"] == pytest.approx(text_nats / math.log(2) / n_bytes, rel=1e-5)
        assert (scores["context"], scores["stride"]) == (CONTEXT, stride)
        if stride == CONTEXT:  # the stride of validation during training
            assert read_metrics(run / "metrics.csv")["val/loss"][-1] == (9, pytest.approx(mean, rel=1e-5))
            assert trained_model.card.metrics == {"val/loss": pytest.approx(mean, rel=1e-5)}


@pytest.mark.parametrize("name", sampled(ROWS, keep=(0, 1, 2, 5)))
def test_baselines_have_the_models_targets(name: str, small_run: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    run, separate = small_run(name), not name.startswith("packed")
    tokenizer = load_model(run / "last").tokenizer
    stream = [encode(tokenizer, text) for text in DOCUMENTS]
    training = [token for ids in stream for token in ids]
    held_out = list_targets(tokenizer, HELD_OUT, separate=separate)
    counts = Counter(training)
    pairs = Counter(pair for ids in (stream if separate else [training]) for pair in pairwise(ids))
    n_following = Counter(v for v, _ in pairs.elements())
    kinds = Counter(v for v, _ in pairs)

    def unigram(token: int) -> float:
        return (counts[token] + 1) / (len(training) + tokenizer.vocab_size)

    def bigram(v: int, w: int) -> float:
        return (pairs[v, w] + kinds[v] * unigram(w)) / (n_following[v] + kinds[v]) if n_following[v] else unigram(w)

    scores = evaluate_json(run / "last", capsys)
    probabilities = {
        "unigram": [unigram(target.token) for target in held_out],
        "bigram": [bigram(target.previous, target.token) for target in held_out],
    }
    for baseline, target_probabilities in probabilities.items():
        nats = [-math.log(p) for p in target_probabilities]
        text = [x for x, target in zip(nats, held_out, strict=True) if target.token != tokenizer.eos_id]
        result = scores["baselines"][baseline]
        assert result["tokens"] == scores["tokens"] == len(nats)
        assert result["bytes"] == scores["bytes"]
        assert result["loss_nats_per_token"] == pytest.approx(sum(nats) / len(nats))
        assert result["perplexity"] == pytest.approx(math.e ** (sum(nats) / len(nats)))
        assert result["bits_per_byte"] == pytest.approx(sum(text) / math.log(2) / scores["bytes"])
    raw = "".join(HELD_OUT).encode()
    assert scores["baselines"]["gzip -9"]["bits_per_byte"] == 8 * len(gzip.compress(raw, 9)) / len(raw)


@pytest.mark.slow
def test_the_table_shows_the_same_figures(small_run: SmallRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run("documents") / "last"
    scores = evaluate_json(run, capsys)
    assert main(["evaluate", str(run), "--device", "cpu"]) == 0
    table = capsys.readouterr().out
    bits, nats, perplexity = (scores[name] for name in ("bits_per_byte", "loss_nats_per_token", "perplexity"))
    row = next(line.split() for line in table.splitlines() if line.strip().startswith("model"))
    assert row[1:] == [f"{bits:.4f}", f"{nats:.4f}", f"{perplexity:,.2f}"]
    assert (
        f"{scores['tokens']:,} tokens, {scores['bytes']:,} bytes; context {CONTEXT}, windows {CONTEXT} apart" in table
    )

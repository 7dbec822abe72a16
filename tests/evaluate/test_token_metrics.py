"""Metrics over log-probabilities have the value and interval of the built-in score that they compute."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.checkpoint import Card, Encoder, LanguageModel, load_model, save_model
from tercet.config import UserError
from tercet.data import Corpus
from tercet.evaluate import CustomMetric, LanguageEvaluation, MaskedEvaluation, evaluation_of, paired_differences
from tercet.evaluate.token_metrics import PIECE_TOKENS, TokenScores
from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.spec import Share, spec
from tercet.tokens import BPE, Tokenizer, WordPiece

STACK = StackSpec(d_model=24, n_layers=1, n_heads=2)
WORDS = ["the", "red", "cat", "sleeps", "and", "a", "small", "blue", "mouse", "eats", "all", "of", "it"]
LINES = [" ".join([*WORDS[: 3 + number % 9], str(number)]) for number in range(40)]


@spec
class BitsPerByte(CustomMetric):
    def score(self, predictions: Sequence[np.ndarray], references: Sequence[str]) -> float:
        n_bytes = sum(len(text.encode()) for text in references)
        return -float(np.concatenate(predictions).astype(np.float64).sum()) / math.log(2) / n_bytes


@spec
class MeanLoss(CustomMetric):
    factor: Share = 1.0

    def score(self, predictions: Sequence[np.ndarray], references: Sequence[str]) -> dict[str, Any]:
        return {
            "tokens": [len(row) for row in predictions],
            "nats": -self.factor * float(np.concatenate(predictions).astype(np.float64).mean()),
            "finite": [bool(np.isfinite(row).all() and len(row)) for row in predictions],
        }


@spec
class Failing(CustomMetric):
    def score(self, predictions: Sequence[Any], references: Sequence[Any]) -> float:
        raise KeyError("missing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "one.txt").write_text(" ".join(LINES))
    writer, reader = Tokenizer.train(BPE(vocab_size=300), LINES), Tokenizer.train(WordPiece(vocab_size=90), LINES)
    for seed in (1, 2):
        gpt = DecoderOnly(DecoderOnlySpec(vocab_size=writer.vocab_size, max_len=13, stack=STACK), seed=seed)
        save_model(folder / f"gpt-{seed}", gpt, writer, Card(name="gpt"))
        bert = EncoderOnly(EncoderOnlySpec(vocab_size=reader.vocab_size, max_len=13, stack=STACK), seed=seed)
        save_model(folder / f"bert-{seed}", bert, reader, Card(name="bert"))
    return folder


def gpt(folder: Path, seed: int = 1) -> LanguageEvaluation:
    model = load_model(folder / f"gpt-{seed}")
    assert isinstance(model, LanguageModel)
    return LanguageEvaluation(model)


def bert(folder: Path, seed: int = 1) -> MaskedEvaluation:
    model = load_model(folder / f"bert-{seed}")
    assert isinstance(model, Encoder)
    evaluation = evaluation_of(model)
    assert isinstance(evaluation, MaskedEvaluation)
    return evaluation


def test_bits_per_byte_of_a_metric_are_those_of_the_model(folder: Path) -> None:
    evaluation = gpt(folder)
    corpus = evaluation.load(folder / "lines.txt", documents="line")
    score = evaluation.score(corpus, metrics=[BitsPerByte()]).metrics["BitsPerByte"]
    weighted = evaluation.weighted(corpus)
    assert weighted.names == ("bits_per_byte",)
    assert score.value == pytest.approx(weighted.values()["bits_per_byte"], rel=1e-6)
    assert score.interval == pytest.approx(weighted.intervals()["bits_per_byte"], rel=1e-6)
    compared = paired_differences(*(gpt(folder, seed).weighted_metrics(corpus, [BitsPerByte()]) for seed in (1, 2)))
    expected = paired_differences(*(gpt(folder, seed).weighted(corpus) for seed in (1, 2)))
    one, other = compared["BitsPerByte"], expected["bits_per_byte"]
    assert (one.difference, one.p_value) == pytest.approx((other.difference, other.p_value), rel=1e-4)


def test_masked_tokens_are_those_of_the_masked_loss(folder: Path) -> None:
    evaluation = bert(folder)
    corpus = evaluation.load(folder / "lines.txt", documents="line")
    scores = evaluation.score(corpus, metrics=[MeanLoss()], rate=0.3, seed=5)
    assert scores.metrics["MeanLoss.nats"].value == pytest.approx(scores.masked_loss, rel=1e-5)
    losses, _ = evaluation.token_losses(corpus, rate=0.3, seed=5)
    parts = TokenScores.of(corpus, losses)
    assert sum(map(len, parts.logprobs)) == scores.tokens
    assert 10 < len(parts.texts) < len(LINES)  # lines without a masked token are left out
    assert scores.metrics["MeanLoss.finite"].value == 1.0
    weighted = [bert(folder, seed).weighted_metrics(corpus, [MeanLoss()]) for seed in (1, 2)]
    assert paired_differences(*weighted)["MeanLoss.tokens"].difference == 0.0


def test_few_documents_are_divided_into_pieces(folder: Path) -> None:
    evaluation = gpt(folder)
    corpus = evaluation.load(folder / "one.txt")
    parts = TokenScores.of(corpus, evaluation.token_losses(corpus))
    assert len(corpus.validation_documents) == 1
    assert len(parts.texts) == -(-len(corpus.validation) // PIECE_TOKENS) > 1
    assert "".join(parts.texts) == " ".join(LINES)
    low, high = evaluation.score(corpus, metrics=[BitsPerByte()]).metrics["BitsPerByte"].interval or (0, 0)
    assert low < high


def test_documents_have_their_own_tokens_without_special_ones(folder: Path) -> None:
    evaluation = gpt(folder)
    corpus: Corpus = evaluation.load(folder / "lines.txt", documents="line")
    positions = np.arange(len(corpus.validation), dtype=np.float32)  # as losses, which show the places of tokens
    positions[7] = np.nan
    parts = TokenScores.of(corpus, positions)
    assert parts.texts == tuple(LINES)
    starts = corpus.validation_documents
    ids = corpus.validation
    for row, start, end in zip(parts.logprobs, starts, [*starts[1:], len(ids)], strict=True):
        expected = [n for n in range(start, end) if n != 7 and ids[n] not in corpus.tokenizer.special_ids]
        assert (-row).tolist() == expected


def test_faulty_metric_is_reported_before_the_model_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for evaluation in (gpt(folder), bert(folder)):
        corpus = evaluation.load(folder / "lines.txt", documents="line")
        monkeypatch.setattr(type(evaluation), "token_losses", None)
        monkeypatch.setattr("tercet.evaluate.tasks.language.score", None)
        monkeypatch.setattr("tercet.evaluate.tasks.masked.score_masked", None)
        with pytest.raises(UserError, match="Failing: score failed for 40 documents"):
            evaluation.score(corpus, metrics=[Failing()])


def test_stride_applies_to_metrics(folder: Path) -> None:
    evaluation = gpt(folder)
    corpus = evaluation.load(folder / "lines.txt", documents="line")
    for stride in (None, 1):
        scores = evaluation.score(corpus, stride=stride, metrics=[BitsPerByte()])
        # The first token of the text has bytes, but is not scored.
        ratio = scores.bytes / sum(len(line.encode()) for line in LINES)
        assert scores.metrics["BitsPerByte"].value == pytest.approx(scores.bits_per_byte * ratio, rel=1e-5)

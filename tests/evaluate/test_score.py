"""`score` equals a plain loop and has no side effects."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tercet.config import UserError
from tercet.evaluate import LanguageScores, score
from tercet.models import DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import Rotary
from tercet.notebook import Table
from tercet.objectives import logprobs

pytestmark = pytest.mark.threads

SPEC = DecoderOnlySpec(
    vocab_size=13,
    max_len=5,
    stack=StackSpec(d_model=24, n_layers=2, n_heads=3, position=Rotary(), dropout=Dropout(residual=0.5)),
)
IDS = np.random.default_rng(0).integers(0, 13, 38).astype(np.uint16)  # 37 targets: seven windows and two more targets


def random_model(spec: DecoderOnlySpec = SPEC) -> DecoderOnly:
    model = DecoderOnly(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 6  # far from uniform
    return model


def losses_by_loop(model: DecoderOnly, ids: np.ndarray, stride: int, starts: np.ndarray | None = None) -> list[float]:
    """Return -ln p of each target, window by window and token by token."""
    model = model.eval()
    losses: dict[int, float] = {}
    for start in range(0, len(ids) - 1, stride):
        for target in range(start + 1, min(start + model.max_len, len(ids) - 1) + 1):
            if target not in losses:
                tokens = torch.from_numpy(ids[start:target].astype(np.int64))[None]
                documents = None
                if starts is not None:
                    numbers = np.searchsorted(starts, np.arange(start, target), side="right")
                    documents = torch.from_numpy(numbers)[None]
                with torch.no_grad():
                    logits = model(tokens, documents=documents)[0, -1].double()
                losses[target] = -logits.log_softmax(-1)[int(ids[target])].item()
    return [losses[target] for target in range(1, len(ids))]


@pytest.mark.parametrize(("n_ids", "stride"), [(2, None), (4, 3), (6, 1), (7, 5), (38, None), (38, 3)])
def test_score_matches_a_plain_loop(n_ids: int, stride: int | None) -> None:
    model, ids = random_model(), IDS[:n_ids]
    losses = losses_by_loop(model, ids, stride or 5)
    scores = score(model, ids, n_bytes=19, special_ids=frozenset({2, 7}), stride=stride)
    text = sum(loss for loss, target in zip(losses, ids[1:], strict=True) if target not in (2, 7))
    assert scores.loss_nats_per_token == pytest.approx(np.mean(losses), abs=1e-5)  # logits of 50 in float32
    assert scores.perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
    assert scores.bits_per_byte == pytest.approx(text / math.log(2) / 19, abs=1e-5)
    assert (scores.tokens, scores.bytes, scores.context, scores.stride) == (n_ids - 1, 19, 5, stride or 5)


@pytest.mark.slow
def test_separate_documents_have_no_shared_context() -> None:
    starts = np.array([0, 7, 8, 20])
    losses = losses_by_loop(random_model(), IDS, 5, starts)
    counted_losses = [
        loss for target, loss in enumerate(losses, 1) if target not in starts
    ]  # no context from another document
    scores = score(random_model(), IDS, n_bytes=1, document_starts=starts)
    assert scores.tokens == len(counted_losses)
    assert scores.loss_nats_per_token == pytest.approx(np.mean(counted_losses), abs=2e-6)
    assert scores.loss_nats_per_token != pytest.approx(
        score(random_model(), IDS, n_bytes=1).loss_nats_per_token, abs=1e-3
    )


def test_two_scores_are_bitwise_identical() -> None:
    model = random_model()
    assert score(model, IDS, n_bytes=40) == score(model, IDS, n_bytes=40)


@pytest.mark.parametrize("batch_tokens", [1, 5, 11, 35])
def test_batch_size_changes_nothing(batch_tokens: int) -> None:
    model = random_model()
    scores, scores_in_batches = score(model, IDS, n_bytes=40), score(model, IDS, n_bytes=40, batch_tokens=batch_tokens)
    assert scores.loss_nats_per_token == pytest.approx(scores_in_batches.loss_nats_per_token, abs=1e-6)
    assert scores.bits_per_byte == pytest.approx(scores_in_batches.bits_per_byte, abs=1e-6)


def test_chunk_size_of_logits_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model()
    whole = score(model, IDS, n_bytes=40)
    monkeypatch.setattr(logprobs, "MAX_LOGITS", 30)
    assert score(model, IDS, n_bytes=40).loss_nats_per_token == pytest.approx(whole.loss_nats_per_token, abs=1e-6)


def test_ids_that_pad_the_vocabulary_have_no_probability() -> None:
    model = random_model(replace(SPEC, pad_vocab_to=16))
    before = score(model, IDS, n_bytes=40)
    with torch.no_grad():
        model.unembedding.weight[13:] = 1000.0
    assert score(model, IDS, n_bytes=40) == before


def test_uniform_model_scores_ln_v() -> None:
    model = random_model()
    with torch.no_grad():
        model.unembedding.weight.zero_()
    scores = score(model, IDS, n_bytes=37)
    assert scores.loss_nats_per_token == pytest.approx(math.log(13), abs=1e-6)
    assert scores.perplexity == pytest.approx(13, rel=1e-5)
    assert scores.bits_per_byte == pytest.approx(math.log2(13), abs=1e-5)  # one byte per token, no special tokens


@pytest.mark.parametrize("training", [True, False])
def test_scoring_has_no_side_effects(training: bool) -> None:
    model = random_model().train(training)
    model.stack.blocks[0].eval()  # this part has another mode than the rest
    modes = [module.training for module in model.modules()]
    random, numpy_random = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - the one not to touch
    score(model, IDS, n_bytes=1)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert np.array_equal(np.random.get_state()[1], numpy_random)  # noqa: NPY002
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"id 13 exceeds the model's vocab_size=13; use the model's tokenizer"):
        score(random_model(), np.array([0, 13]), n_bytes=1)
    with pytest.raises(ValueError, match=r"stride=6 must be from 1 to length=5"):
        score(random_model(), IDS, n_bytes=1, stride=6)
    with pytest.raises(UserError, match=r"the data has 1 tokens"):
        score(random_model(), IDS[:1], n_bytes=1)


class TestNumbers:
    def test_bits_per_byte_leaves_special_targets_out(self) -> None:
        scores = LanguageScores.from_sums(nats=10.0, text_nats=8.0, tokens=5, n_bytes=4, context=3, stride=3)
        assert scores.loss_nats_per_token == 2.0
        assert scores.perplexity == pytest.approx(math.e**2)
        assert scores.bits_per_byte == pytest.approx(2 / math.log(2))

    @pytest.mark.parametrize("nats", [1e9, math.inf, math.nan])
    def test_diverged_model_gives_valid_json(self, nats: float) -> None:
        scores = LanguageScores.from_sums(nats=nats, text_nats=nats, tokens=5, n_bytes=4, context=3, stride=3)
        data = json.loads(json.dumps(scores.to_dict({"xz -9e": 2.5}), allow_nan=False))
        assert data["perplexity"] is None
        assert data["baselines"] == {"xz -9e": {"bits_per_byte": 2.5}}

    def test_table_lists_the_best_first(self) -> None:
        scores = LanguageScores.from_sums(nats=10.0, text_nats=8.0, tokens=5, n_bytes=4, context=3, stride=3)
        (table,) = scores.view({"gzip -9": 4.0, "unigram": scores, "xz -9e": 3.0}).parts
        assert isinstance(table, Table)
        assert [row[0] for row in table.rows] == ["model", "unigram", "xz -9e", "gzip -9"]
        assert [row[1] for row in table.rows][2:] == ["3.0000", "4.0000"]

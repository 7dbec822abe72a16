"""Forced decoding matches the formula for each pair, whatever else is in the batch."""

from typing import Any

import numpy as np
import pytest
import torch
from small_translator import SOURCE_TOKENIZER, TOKENIZER, small

from tercet.config import UserError
from tercet.evaluate import score_pairs
from tercet.models import EncoderDecoder
from tercet.objectives import logprobs
from tercet.tokens import Characters, Tokenizer

pytestmark = pytest.mark.threads

DRAWS = np.random.default_rng(5)


def text(letters: str, longest: int = 11) -> str:
    return "".join(DRAWS.choice(list(letters), DRAWS.integers(1, longest))).strip() or letters[0]


PAIRS = [(text("abcdefghij ."), text("abcdefghij .")) for _ in range(23)]


def expected_logprob(model: EncoderDecoder, source: str, target: str, source_tokenizer: Tokenizer = TOKENIZER) -> float:
    """Return the sum of ln p(token), with a separate forward pass per token."""
    read = torch.tensor([[*source_tokenizer.encode(source), source_tokenizer.eos_id]])
    total, prefix = 0.0, [TOKENIZER.bos_id]
    for token in [*TOKENIZER.encode(target), TOKENIZER.eos_id]:
        with torch.no_grad():
            total += model(read, torch.tensor([prefix]))[0, -1].double().log_softmax(-1)[token].item()
        prefix.append(token)
    return total


@pytest.mark.slow
def test_scores_match_the_formula() -> None:
    model = small()
    for (source, target), score in zip(PAIRS[:7], score_pairs(model, TOKENIZER, PAIRS[:7]), strict=True):
        assert score.logprob == pytest.approx(expected_logprob(model, source, target), abs=1e-4)
        assert score.tokens == len(target) + 1
        assert score.nats_per_token == -score.logprob / score.tokens
        assert not score.truncated


@pytest.mark.slow
def test_source_and_target_may_have_two_vocabularies() -> None:
    model, pairs = small(joint=False), [("uvw xyz", "abc"), ("z", "jih gfe")]
    for (source, target), score in zip(
        pairs, score_pairs(model, TOKENIZER, pairs, source_tokenizer=SOURCE_TOKENIZER), strict=True
    ):
        assert score.logprob == pytest.approx(expected_logprob(model, source, target, SOURCE_TOKENIZER), abs=1e-4)


@pytest.mark.slow
def test_other_pairs_in_the_batch_change_nothing() -> None:
    model = small()
    whole = [score.logprob for score in score_pairs(model, TOKENIZER, PAIRS)]
    for batch_tokens in (1, 64):
        logprobs = [score.logprob for score in score_pairs(model, TOKENIZER, PAIRS, batch_tokens=batch_tokens)]
        assert logprobs == pytest.approx(whole, abs=1e-4), batch_tokens
    backwards = [score.logprob for score in score_pairs(model, TOKENIZER, PAIRS[::-1])][::-1]
    assert backwards == pytest.approx(whole, abs=1e-4)


def test_missing_mask_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    right_logprobs = [score.logprob for score in score_pairs(model, TOKENIZER, PAIRS)]
    forward = model.encode
    monkeypatch.setattr(model, "encode", lambda source, token_mask: forward(source))
    wrong_logprobs = [score.logprob for score in score_pairs(model, TOKENIZER, PAIRS)]
    assert wrong_logprobs != pytest.approx(right_logprobs, abs=1e-2)


def test_chunked_logits_give_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    whole = score_pairs(model, TOKENIZER, PAIRS)
    monkeypatch.setattr(logprobs, "MAX_LOGITS", 1)
    for score, whole_score in zip(score_pairs(model, TOKENIZER, PAIRS), whole, strict=True):
        assert score.logprob == pytest.approx(whole_score.logprob, abs=1e-5)


def test_overlong_pairs_are_cut_and_reported() -> None:
    model = small(max_len=7)
    pairs = [("abcdef", "abcdef"), ("abcdefg", "ab"), ("ab", "abcdefg"), ("", "")]
    scores = score_pairs(model, TOKENIZER, pairs)
    assert [score.truncated for score in scores] == [False, True, True, False]
    assert [score.tokens for score in scores] == [7, 3, 7, 1]
    assert scores[1].logprob == pytest.approx(expected_logprob(model, "abcdef", "ab"), abs=1e-4)
    assert all(np.isfinite(score.logprob) for score in scores)


def test_outer_white_space_is_ignored() -> None:
    model = small()
    score, stripped_score = score_pairs(model, TOKENIZER, [("ab c", "de"), (" ab c\u00a0", "\u2028de\r")])
    assert score.logprob == pytest.approx(stripped_score.logprob, abs=1e-5)


def test_model_is_unchanged() -> None:
    model = small().train()
    score_pairs(model, TOKENIZER, PAIRS)
    assert all(module.training for module in model.modules())
    assert not score_pairs(model, TOKENIZER, [])


def test_score_has_a_text_form() -> None:
    model = small()
    with pytest.raises(ValueError, match="batch_tokens=0 must be 1 or more"):
        score_pairs(model, TOKENIZER, PAIRS, batch_tokens=0)
    settings: dict[str, Any] = {"alphabet": "ab", "eos": True}
    with pytest.raises(UserError, match="no beginning or end token"):
        score_pairs(model, Tokenizer.train(Characters(**settings), []), PAIRS)
    with torch.no_grad():
        model.embedding.weight[TOKENIZER.encode("a")[0]] = torch.nan
    with pytest.raises(UserError, match="not numbers"):
        score_pairs(model, TOKENIZER, [("a", "b")])

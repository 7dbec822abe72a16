"""Embeddings and pseudo-likelihoods match a plain loop, and do not depend on the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_encoders import TEXTS, build_tokenizer, encoder

from tercet.config import UserError
from tercet.encoding import embed, encode_texts, pseudo_logprobs, pseudo_scores
from tercet.models import EncoderOnly
from tercet.tokens import BPE, Tokenizer

pytestmark = pytest.mark.threads


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> EncoderOnly:
    return encoder(tokenizer.vocab_size)


def hidden(model: EncoderOnly, tokenizer: Tokenizer, text: str) -> torch.Tensor:
    with torch.no_grad():
        return model.hidden(torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]]))[0]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_vectors_are_the_pooled_hidden_states(
    model: EncoderOnly, tokenizer: Tokenizer, pooling: str, normalize: bool
) -> None:
    found = embed(model, tokenizer, TEXTS, pooling=pooling, normalize=normalize)  # type: ignore[arg-type]
    assert found.vectors.shape == (len(TEXTS), 24)
    assert found.vectors.dtype == np.float32
    assert found.truncated == 0
    for text, vector in zip(TEXTS, found.vectors, strict=True):
        states = hidden(model, tokenizer, text)
        expected = states.mean(0) if pooling == "mean" else states[0]
        expected = expected / expected.norm() if normalize else expected
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(order=st.permutations(range(len(TEXTS))), batch_tokens=st.integers(1, 300))
def test_batch_does_not_change_vectors(order: list[int], batch_tokens: int) -> None:
    tokenizer = build_tokenizer()
    model = encoder(tokenizer.vocab_size)
    separate = np.concatenate([embed(model, tokenizer, [text]).vectors for text in TEXTS])
    batched = embed(model, tokenizer, [TEXTS[number] for number in order], batch_tokens=batch_tokens).vectors
    np.testing.assert_allclose(batched, separate[order], atol=1e-5)


def test_model_that_sees_padding_is_detected(
    model: EncoderOnly, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    separate = embed(model, tokenizer, TEXTS[:1]).vectors
    original_hidden = model.hidden
    monkeypatch.setattr(model, "hidden", lambda tokens, **_: original_hidden(tokens))
    assert np.abs(embed(model, tokenizer, TEXTS).vectors[:1] - separate).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("batch_tokens", [1, 16_384])
def test_batch_does_not_change_likelihoods(model: EncoderOnly, tokenizer: Tokenizer, batch_tokens: int) -> None:
    separate = [pseudo_logprobs(model, tokenizer, [text])[0] for text in TEXTS]
    for expected, found in zip(
        separate, pseudo_logprobs(model, tokenizer, TEXTS, batch_tokens=batch_tokens), strict=True
    ):
        np.testing.assert_allclose(expected, found, atol=1e-5)


def test_training_model_is_evaluated_and_its_mode_restored(tokenizer: Tokenizer) -> None:
    model = encoder(tokenizer.vocab_size).train()
    expected = embed(encoder(tokenizer.vocab_size), tokenizer, TEXTS).vectors
    np.testing.assert_array_equal(embed(model, tokenizer, TEXTS).vectors, expected)
    assert all(part.training for part in model.modules())


def test_empty_list_and_long_texts(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    assert embed(model, tokenizer, []).vectors.shape == (0, 24)
    assert pseudo_logprobs(model, tokenizer, []) == []
    long_text = "the cat sat " * 40
    result = embed(model, tokenizer, [long_text, "cat"])
    assert result.truncated == 1
    encoded_texts = encode_texts(tokenizer, [long_text], max_len=model.max_len)
    assert len(encoded_texts.rows[0]) == model.max_len
    assert encoded_texts.rows[0][-1] == tokenizer.eos_id
    assert pseudo_scores(model, tokenizer, [long_text])[0].truncated
    assert pseudo_scores(model, tokenizer, [long_text])[0].tokens == model.max_len - 2


@pytest.mark.parametrize("max_len", [0, 2])
def test_length_without_room_for_a_token_is_rejected(model: EncoderOnly, tokenizer: Tokenizer, max_len: int) -> None:
    with pytest.raises(ValueError, match=f"max_len={max_len} must be at least 3"):
        embed(model, tokenizer, ["cat"], max_len=max_len)


@pytest.mark.slow
@pytest.mark.parametrize("within_word", [False, True])
def test_pseudo_likelihood_masks_each_token_once(model: EncoderOnly, tokenizer: Tokenizer, within_word: bool) -> None:
    text_logprobs = pseudo_logprobs(model, tokenizer, TEXTS, within_word=within_word)
    several = False
    for text, logprobs in zip(TEXTS, text_logprobs, strict=True):
        ids = tokenizer.encode(text)
        starts = [*tokenizer.word_starts(np.array([tokenizer.bos_id, *ids]))[1:].tolist(), True]
        several |= not all(starts)
        assert len(logprobs) == len(ids), "one per token, none for bos and eos"
        for place, token in enumerate(ids):
            end = place + 1
            while within_word and not starts[end]:
                end += 1
            row = [*ids[:place], *[tokenizer.mask_id] * (end - place), *ids[end:]]
            with torch.no_grad():
                logits = model(torch.tensor([[tokenizer.bos_id, *row, tokenizer.eos_id]]))[0, place + 1]
            assert logprobs[place] == pytest.approx(logits.log_softmax(-1)[token].item(), abs=1e-5)
    assert several, "no word has two pieces, so nothing is tested"
    assert text_logprobs[0].sum() == pytest.approx(
        pseudo_scores(model, tokenizer, TEXTS, within_word=within_word)[0].logprob
    )


def test_within_word_changes_only_words_of_several_pieces(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    pairs = zip(
        TEXTS,
        pseudo_logprobs(model, tokenizer, TEXTS),
        pseudo_logprobs(model, tokenizer, TEXTS, within_word=True),
        strict=True,
    )
    for text, plain, word_logprobs in pairs:
        has_whole_words = (
            tokenizer.word_starts(np.array(tokenizer.encode(text), dtype=np.int64)).all() if text else True
        )
        assert np.allclose(plain, word_logprobs, atol=1e-5) == has_whole_words


def test_tokenizer_without_bos_and_eos_is_rejected() -> None:
    tokenizer = Tokenizer.train(BPE(vocab_size=280), TEXTS)
    with pytest.raises(UserError, match="no token for the beginning or the end of a text"):
        embed(encoder(tokenizer.vocab_size), tokenizer, TEXTS)

"""Mask filling gives the model's own probabilities in order, and does not depend on the batch."""

import itertools
import re

import numpy as np
import pytest
import torch
from small_encoders import KINDS, TEXTS, encoder, tokenizer

from tercet.config import UserError
from tercet.encoding import fill
from tercet.models import EncoderOnly
from tercet.tokens import Tokenizer

ONE = "the [MASK] sat on the mat"


@pytest.fixture(scope="module")
def own() -> Tokenizer:
    return tokenizer()


@pytest.fixture(scope="module")
def model(own: Tokenizer) -> EncoderOnly:
    return encoder(own.vocab_size)


def by_hand(model: EncoderOnly, own: Tokenizer, ids: list[int]) -> torch.Tensor:
    """Return the probabilities p (T, V) of one row."""
    with torch.no_grad():
        return model(torch.tensor([[own.bos_id, *ids, own.eos_id]]))[0, 1:-1].softmax(-1)


def test_probabilities_are_those_of_the_model(model: EncoderOnly, own: Tokenizer) -> None:
    found = fill(model, own, [ONE], top=7)[0]
    ids = own.encode_masked(ONE).tolist()
    p = by_hand(model, own, ids)[ids.index(own.mask_id)]
    (candidates,) = found.masks
    assert len(candidates) == 7
    for one in candidates:
        assert one.probability == pytest.approx(p[one.ids[0]].item(), abs=1e-6)
    text = sorted((p[i].item() for i in range(own.vocab_size) if i not in {*own.special_ids, own.unk_id}), reverse=True)
    np.testing.assert_allclose([one.probability for one in candidates], text[:7], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_sorted_real_tokens_decoded_in_place(kind: str) -> None:
    own = tokenizer(kind)
    model = encoder(own.vocab_size)
    text = "the [MASK] sat <mask> the mat"
    found = fill(model, own, [text], top=10_000)[0]
    assert len(found.masks) == 2
    for candidates in found.masks:
        p = [one.probability for one in candidates]
        assert p == sorted(p, reverse=True)
        assert sum(p) <= 1 + 1e-6
        assert len(p) == own.vocab_size - len({*own.special_ids, own.unk_id} - {None})
        assert not {one.ids[0] for one in candidates} & own.special_ids
    cat = next(one for one in fill(model, own, [text], only=["cat"])[0].masks[0])
    assert cat.text == f"the cat sat {own.mask_token} the mat"
    on = next(one for one in fill(model, own, [text], only=["on"])[0].masks[1])
    assert on.text == f"the {own.mask_token} sat on the mat"


def test_each_mask_has_its_own_candidates(model: EncoderOnly, own: Tokenizer) -> None:
    text = "[MASK] cat [MASK] on the [MASK]"
    ids = own.encode_masked(text).tolist()
    p = by_hand(model, own, ids)
    places = [place for place, token in enumerate(ids) if token == own.mask_id]
    found = fill(model, own, [text], top=3)[0]
    assert len(found.masks) == 3
    for place, candidates in zip(places, found.masks, strict=True):
        for one in candidates:
            assert one.probability == pytest.approx(p[place, one.ids[0]].item(), abs=1e-6)
            assert one.text.count("[MASK]") == 2


@pytest.mark.parametrize("spelt", ["[MASK]", "<mask>"])
@pytest.mark.parametrize("kind", KINDS)
def test_mask_may_be_spelled_both_ways(kind: str, spelt: str) -> None:
    own = tokenizer(kind)
    model = encoder(own.vocab_size)
    found = fill(model, own, [f"the {spelt} sat"])[0].masks
    assert [one.ids for one in found[0]] == [one.ids for one in fill(model, own, ["the [MASK] sat"])[0].masks[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_word_of_several_pieces_is_filled_from_left_to_right(kind: str) -> None:
    own = tokenizer(kind)
    model = encoder(own.vocab_size)
    words = ["cat", "dog", "sat", "unbelievable"]
    ids = own.encode_masked(ONE).tolist()
    place = ids.index(own.mask_id)
    found = {one.word: one for one in fill(model, own, [ONE], only=words)[0].masks[0]}
    assert set(found) == set(words)
    for word in words:
        whole = own.encode(ONE.replace("[MASK]", word)).copy()
        pieces = whole[place : len(whole) - (len(ids) - place - 1)]
        assert found[word].ids == tuple(pieces)
        logprob = 0.0
        for k, piece in enumerate(pieces):
            row = [*ids[:place], *pieces[:k], *[own.mask_id] * (len(pieces) - k), *ids[place + 1 :]]
            logprob += by_hand(model, own, row)[place + k, piece].log().item()
        assert found[word].probability == pytest.approx(np.exp(logprob), rel=1e-4)
        assert found[word].text == ONE.replace("[MASK]", word)
    p = [one.probability for one in fill(model, own, [ONE], only=words)[0].masks[0]]
    assert p == sorted(p, reverse=True)
    assert sum(p) <= 1 + 1e-6


def test_one_piece_words_have_their_full_probability(model: EncoderOnly, own: Tokenizer) -> None:
    every = {one.ids: one.probability for one in fill(model, own, [ONE], top=10_000)[0].masks[0]}
    for one in fill(model, own, [ONE], only=["cat", "the", "mat"])[0].masks[0]:
        if len(one.ids) == 1:
            assert one.probability == pytest.approx(every[one.ids], abs=1e-6)


def test_only_is_limited_to_top_and_merges_equal_spellings(model: EncoderOnly, own: Tokenizer) -> None:
    words = ["cat", "dog", "Cat", "on", "the", "mat", "a", "ran"]
    every = fill(model, own, [ONE], only=words)[0].masks[0]
    assert {one.word for one in every} == set(words) - {"Cat"}
    assert fill(model, own, [ONE], only=words, top=2)[0].masks[0] == every[:2]


def test_batch_does_not_change_candidates(model: EncoderOnly, own: Tokenizer) -> None:
    texts = ["[MASK]", ONE, "dogs [MASK] on the mat and the cats [MASK] until the dogs ran", "a [MASK] ran"]
    separate = [fill(model, own, [text], top=20)[0] for text in texts]
    for batch_tokens in (1, 20, 16_384):
        batched = fill(model, own, texts, top=20, batch_tokens=batch_tokens)
        for one, other in zip(separate, batched, strict=True):
            for left, right in zip(itertools.chain(*one.masks), itertools.chain(*other.masks), strict=True):
                assert left.ids == right.ids
                assert left.probability == pytest.approx(right.probability, abs=1e-5)


def test_unfillable_text_is_rejected_with_a_reason(model: EncoderOnly, own: Tokenizer) -> None:
    with pytest.raises(UserError, match=re.escape("no mask in 'the cat'; write [MASK] where a word is missing")):
        fill(model, own, ["the cat"])
    with pytest.raises(UserError, match=r"mask 2 in .* is beyond the model's context of 37 tokens"):
        fill(model, own, ["[MASK]" + " cat" * 60 + " [MASK]"])
    assert fill(model, own, ["[MASK]" + " cat" * 60])[0].truncated
    with pytest.raises(UserError, match="the vocabulary has no 'жук'"):
        fill(model, own, [ONE], only=["cat", "жук"])
    with pytest.raises(UserError, match="the vocabulary has no ' '"):
        fill(model, own, [ONE], only=[" "])
    with pytest.raises(ValueError, match="top=0 must be at least 1"):
        fill(model, own, [ONE], top=0)
    plain = Tokenizer.train(KINDS["bpe"].__class__(vocab_size=280, bos=True), TEXTS)
    with pytest.raises(UserError, match="no mask token"):
        fill(encoder(plain.vocab_size), plain, [ONE])

"""Mask filling gives the model's own probabilities in order, and does not depend on the batch."""

import itertools
import re

import numpy as np
import pytest
import torch
from small_encoders import KINDS, TEXTS, build_tokenizer, encoder

from tercet.config import UserError
from tercet.encoding import fill
from tercet.models import EncoderOnly
from tercet.tokens import Tokenizer

TEXT = "the [MASK] sat on the mat"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> EncoderOnly:
    return encoder(tokenizer.vocab_size)


def by_hand(model: EncoderOnly, tokenizer: Tokenizer, ids: list[int]) -> torch.Tensor:
    """Return the probabilities p (T, V) of one row."""
    with torch.no_grad():
        return model(torch.tensor([[tokenizer.bos_id, *ids, tokenizer.eos_id]]))[0, 1:-1].softmax(-1)


def test_probabilities_are_those_of_the_model(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    result = fill(model, tokenizer, [TEXT], top=7)[0]
    ids = tokenizer.encode_masked(TEXT).tolist()
    p = by_hand(model, tokenizer, ids)[ids.index(tokenizer.mask_id)]
    (candidates,) = result.masks
    assert len(candidates) == 7
    for candidate in candidates:
        assert candidate.probability == pytest.approx(p[candidate.ids[0]].item(), abs=1e-6)
    text = sorted(
        (p[i].item() for i in range(tokenizer.vocab_size) if i not in {*tokenizer.special_ids, tokenizer.unk_id}),
        reverse=True,
    )
    np.testing.assert_allclose([candidate.probability for candidate in candidates], text[:7], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_sorted_real_tokens_decoded_in_place(kind: str) -> None:
    tokenizer = build_tokenizer(kind)
    model = encoder(tokenizer.vocab_size)
    text = "the [MASK] sat <mask> the mat"
    result = fill(model, tokenizer, [text], top=10_000)[0]
    assert len(result.masks) == 2
    for candidates in result.masks:
        p = [candidate.probability for candidate in candidates]
        assert p == sorted(p, reverse=True)
        assert sum(p) <= 1 + 1e-6
        assert len(p) == tokenizer.vocab_size - len({*tokenizer.special_ids, tokenizer.unk_id} - {None})
        assert not {candidate.ids[0] for candidate in candidates} & tokenizer.special_ids
    cat = next(candidate for candidate in fill(model, tokenizer, [text], only=["cat"])[0].masks[0])
    assert cat.text == f"the cat sat {tokenizer.mask_token} the mat"
    on = next(candidate for candidate in fill(model, tokenizer, [text], only=["on"])[0].masks[1])
    assert on.text == f"the {tokenizer.mask_token} sat on the mat"


def test_each_mask_has_its_own_candidates(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    text = "[MASK] cat [MASK] on the [MASK]"
    ids = tokenizer.encode_masked(text).tolist()
    p = by_hand(model, tokenizer, ids)
    places = [place for place, token in enumerate(ids) if token == tokenizer.mask_id]
    result = fill(model, tokenizer, [text], top=3)[0]
    assert len(result.masks) == 3
    for place, candidates in zip(places, result.masks, strict=True):
        for candidate in candidates:
            assert candidate.probability == pytest.approx(p[place, candidate.ids[0]].item(), abs=1e-6)
            assert candidate.text.count("[MASK]") == 2


@pytest.mark.parametrize("spelling", ["[MASK]", "<mask>"])
@pytest.mark.parametrize("kind", KINDS)
def test_mask_may_be_spelled_both_ways(kind: str, spelling: str) -> None:
    tokenizer = build_tokenizer(kind)
    model = encoder(tokenizer.vocab_size)
    masks = fill(model, tokenizer, [f"the {spelling} sat"])[0].masks
    assert [candidate.ids for candidate in masks[0]] == [
        candidate.ids for candidate in fill(model, tokenizer, ["the [MASK] sat"])[0].masks[0]
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_word_of_several_pieces_is_filled_from_left_to_right(kind: str) -> None:
    tokenizer = build_tokenizer(kind)
    model = encoder(tokenizer.vocab_size)
    words = ["cat", "dog", "sat", "unbelievable"]
    ids = tokenizer.encode_masked(TEXT).tolist()
    place = ids.index(tokenizer.mask_id)
    candidates = {candidate.word: candidate for candidate in fill(model, tokenizer, [TEXT], only=words)[0].masks[0]}
    assert set(candidates) == set(words)
    for word in words:
        filled_ids = tokenizer.encode(TEXT.replace("[MASK]", word)).copy()
        pieces = filled_ids[place : len(filled_ids) - (len(ids) - place - 1)]
        assert candidates[word].ids == tuple(pieces)
        logprob = 0.0
        for k, piece in enumerate(pieces):
            row = [*ids[:place], *pieces[:k], *[tokenizer.mask_id] * (len(pieces) - k), *ids[place + 1 :]]
            logprob += by_hand(model, tokenizer, row)[place + k, piece].log().item()
        assert candidates[word].probability == pytest.approx(np.exp(logprob), rel=1e-4)
        assert candidates[word].text == TEXT.replace("[MASK]", word)
    p = [candidate.probability for candidate in fill(model, tokenizer, [TEXT], only=words)[0].masks[0]]
    assert p == sorted(p, reverse=True)
    assert sum(p) <= 1 + 1e-6


def test_one_piece_words_have_their_full_probability(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    probabilities = {
        candidate.ids: candidate.probability for candidate in fill(model, tokenizer, [TEXT], top=10_000)[0].masks[0]
    }
    for candidate in fill(model, tokenizer, [TEXT], only=["cat", "the", "mat"])[0].masks[0]:
        if len(candidate.ids) == 1:
            assert candidate.probability == pytest.approx(probabilities[candidate.ids], abs=1e-6)


def test_only_is_limited_to_top_and_merges_equal_spellings(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    words = ["cat", "dog", "Cat", "on", "the", "mat", "a", "ran"]
    candidates = fill(model, tokenizer, [TEXT], only=words)[0].masks[0]
    assert {candidate.word for candidate in candidates} == set(words) - {"Cat"}
    assert fill(model, tokenizer, [TEXT], only=words, top=2)[0].masks[0] == candidates[:2]


def test_batch_does_not_change_candidates(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    texts = ["[MASK]", TEXT, "dogs [MASK] on the mat and the cats [MASK] until the dogs ran", "a [MASK] ran"]
    separate = [fill(model, tokenizer, [text], top=20)[0] for text in texts]
    for batch_tokens in (1, 20, 16_384):
        batched = fill(model, tokenizer, texts, top=20, batch_tokens=batch_tokens)
        for expected, found in zip(separate, batched, strict=True):
            for left, right in zip(itertools.chain(*expected.masks), itertools.chain(*found.masks), strict=True):
                assert left.ids == right.ids
                assert left.probability == pytest.approx(right.probability, abs=1e-5)


def test_unfillable_text_is_rejected_with_a_reason(model: EncoderOnly, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=re.escape("no mask in 'the cat'; write [MASK] where a word is missing")):
        fill(model, tokenizer, ["the cat"])
    with pytest.raises(UserError, match=r"mask 2 in .* is beyond the model's context of 37 tokens"):
        fill(model, tokenizer, ["[MASK]" + " cat" * 60 + " [MASK]"])
    assert fill(model, tokenizer, ["[MASK]" + " cat" * 60])[0].truncated
    with pytest.raises(UserError, match="the vocabulary has no 'жук'"):
        fill(model, tokenizer, [TEXT], only=["cat", "жук"])
    with pytest.raises(UserError, match="the vocabulary has no ' '"):
        fill(model, tokenizer, [TEXT], only=[" "])
    with pytest.raises(ValueError, match="top=0 must be at least 1"):
        fill(model, tokenizer, [TEXT], top=0)
    marked = Tokenizer.train(KINDS["bpe"].__class__(vocab_size=280, bos=True, eos=True, mask=True), TEXTS)
    with pytest.raises(UserError, match=re.escape("no mask in 'the cat'; write [MASK] where a word is missing")):
        fill(encoder(marked.vocab_size), marked, ["the cat"])  # its mask token is <mask>
    plain = Tokenizer.train(KINDS["bpe"].__class__(vocab_size=280, bos=True), TEXTS)
    with pytest.raises(UserError, match="no mask token"):
        fill(encoder(plain.vocab_size), plain, [TEXT])

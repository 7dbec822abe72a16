"""Degenerate text (one letter, an endless word) can train a tokenizer, or is rejected with a one-line error."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.limits import MAX_TOKEN_CHARACTERS
from tercet.tokens import BPE, Characters, Tokenizer, Unigram, WordPiece, Words

KINDS = [Characters(), Words(), BPE(vocab_size=300), Unigram(vocab_size=300), WordPiece(vocab_size=300)]


def learn_and_save(spec: Any, text: str, folder: Path) -> Tokenizer | None:
    """Return the tokenizer as loaded from its file, or None if the text was rejected."""
    try:
        tokenizer = Tokenizer.train(spec, [text])
    except UserError:
        return None
    tokenizer.save(folder / "tokenizer.json")
    reloaded = Tokenizer.load(folder / "tokenizer.json")
    assert reloaded.encode(text[:5000]) == tokenizer.encode(text[:5000])
    return reloaded


@pytest.mark.slow
@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: spec.kind)
@given(alphabet=st.sampled_from(["a", "ab", "ab ", "a\n", "01", "🙂a", "日"]), data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_few_characters_are_enough_or_rejected(
    spec: Any, alphabet: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = data.draw(st.text(alphabet, min_size=1, max_size=20)) * data.draw(st.sampled_from([1, 3, 50]))
    learn_and_save(spec, text, tmp_path_factory.mktemp("few"))


def test_one_repeated_letter_has_no_unigram_vocabulary() -> None:
    with pytest.raises(UserError, match="too few different pieces to train a unigram vocabulary; use the kind bpe"):
        Tokenizer.train(Unigram(vocab_size=50), ["a" * 50])


@pytest.mark.slow
@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: spec.kind)
def test_word_without_an_end_is_accepted_or_rejected(spec: Any, tmp_path: Path) -> None:
    text = "word other " + "x" * 9_000 + " word word other. " + "y" * 1_500 + " " + "y" * 1_500 + " word"
    tokenizer = learn_and_save(spec, text, tmp_path)
    assert tokenizer is not None
    assert max(map(len, tokenizer.tokens(range(tokenizer.vocab_size)))) <= MAX_TOKEN_CHARACTERS
    assert tokenizer.decode(tokenizer.encode("word other")) == "word other"

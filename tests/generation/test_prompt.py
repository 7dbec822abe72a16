"""Without a prompt, generation starts from the token that starts a text, whatever the vocabulary calls it."""

import pytest
import tokenizers

from tercet.generation import encode_prompt, start_ids
from tercet.tokens import BPE, Characters, Tokenizer, TokenizerSpec, Unigram, WordPiece, Words

NO_EOS = {"eos": False, "pad": True}


@pytest.mark.parametrize(
    ("spec", "text", "start"),
    [
        (Characters(), "ab\n", "<eos>"),
        (Characters(bos=True), "ab\n", "<eos>"),  # bos does not occur in training; eos is between documents
        (Characters(**NO_EOS), "ab\n", "\n"),
        (Characters(**NO_EOS, bos=True), "ab\n", "\n"),
        (Characters(**NO_EOS), "b a", " "),
        (Characters(**NO_EOS, mask=True), "ba", "a"),
        (Characters(**NO_EOS, byte_fallback=True), "ba", "\n"),
        (Words(**NO_EOS), "one two\nthree", "\n"),
        (Words(**NO_EOS), "one two two three", " two"),  # neither a newline nor a single space is a token
        (BPE(vocab_size=300, **NO_EOS), "one two", "\n"),
        (Unigram(**NO_EOS), "one two", " "),
        (WordPiece(), "one two", "[SEP]"),
    ],
)
def test_empty_prompt_uses_the_token_that_starts_a_text(spec: TokenizerSpec, text: str, start: str) -> None:
    tokenizer = Tokenizer.train(spec, [text])
    assert tokenizer.tokens(start_ids(tokenizer)) == [start]
    assert encode_prompt(tokenizer, "") == start_ids(tokenizer)
    assert encode_prompt(tokenizer, text[:1]) == tokenizer.encode(text[:1]), "a prompt gets no prefix"


def test_opening_tokens_come_first() -> None:
    tokenizer = Tokenizer.train(Characters(bos=True), ["ab"])
    opening_tokenizer = tokenizer.with_opening([tokenizer.id_of("<bos>") or 0])
    assert start_ids(opening_tokenizer) == encode_prompt(opening_tokenizer, "") == [opening_tokenizer.bos_id]
    assert encode_prompt(opening_tokenizer, "a")[1:] == tokenizer.encode("a")


def test_foreign_bos_starts_a_text() -> None:
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<s>": 2}, unk_token="a"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.add_special_tokens(["<s>"])
    foreign = Tokenizer(library)
    assert (foreign.kind, foreign.eos_id) == ("file", None)
    assert start_ids(foreign) == [2]

"""Texts by speculative decoding: stop strings, reported completions, and which draft models are accepted."""

import pytest
from ahead_decoder import CONTEXT, RULE, AheadDecoder
from byte_tokenizer import ByteTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_decoder import script_rule

from tercet.config import UserError
from tercet.generation import (
    Draft,
    Lookup,
    Sampling,
    generate,
    make_draft,
    stream_text,
)
from tercet.tokens import BPE, Characters, Tokenizer

BYTES = ByteTokenizer((b"END", b"EN", b"D", b"\xf0\x9f", b"\x99\x82"))


@pytest.mark.slow
@settings(max_examples=30)
@given(
    script=st.lists(st.sampled_from([256, 257, 258, 259, 260, 97, 98, BYTES.eos_id]), min_size=1, max_size=12),
    stop=st.lists(st.sampled_from(["END", "ND", "ab", "DE", "aa"]), max_size=2),
    tokens=st.integers(1, 6),
)
def test_stop_strings_end_a_text_within_a_pass(script: list[int], stop: list[str], tokens: int) -> None:
    model = AheadDecoder(script_rule(BYTES.vocab_size, [*script, *[0] * 9]), 40)
    sampling = Sampling(max_new_tokens=len(script), stop=tuple(stop))
    (plain,) = generate(model, BYTES, ["?"], sampling)
    for speculation in (Draft(model=model, tokens=tokens), Lookup(ngram=1, tokens=tokens)):
        (completion,) = generate(model, BYTES, ["?"], sampling, speculation=speculation)
        assert (completion.text, completion.ids, completion.finish) == (plain.text, plain.ids, plain.finish)
        assert completion.passes <= plain.passes == len(plain.ids)
        assert "".join(stream_text(model, BYTES, "?", sampling, speculation=speculation)) == plain.text


def test_completion_reports_its_passes() -> None:
    model = AheadDecoder(script_rule(BYTES.vocab_size, list(b"abcdefghij")), 40)
    sampling = Sampling(max_new_tokens=9)
    (completion,) = generate(model, BYTES, ["?"], sampling, speculation=Draft(model=model, tokens=3))
    assert (completion.text, completion.passes) == ("abcdefghi", 3)
    assert generate(model, BYTES, ["?"], sampling)[0].passes == 9


TEXTS = ["one fish, two fish, red fish, blue fish\n" * 9]


def test_draft_needs_the_same_tokenizer_not_the_same_size() -> None:
    tokenizer, model = Tokenizer.train(Characters(), TEXTS), AheadDecoder(RULE, CONTEXT)
    tokenizer_copy = Tokenizer.from_json(tokenizer.to_json())
    assert make_draft(tokenizer, model, tokenizer_copy, tokens=3) == Draft(model=model, tokens=3)
    other_tokenizer = Tokenizer.train(Characters(), [TEXTS[0].replace("x", "y").replace("d", "z")])
    assert other_tokenizer.vocab_size == tokenizer.vocab_size
    with pytest.raises(UserError, match=r"tokenizer differs from the model's: id \d+ = '.' instead of id"):
        make_draft(tokenizer, model, other_tokenizer)
    larger = Tokenizer.train(BPE(vocab_size=300), TEXTS)
    with pytest.raises(UserError, match=rf"{larger.vocab_size} tokens instead of {tokenizer.vocab_size}; use a"):
        make_draft(tokenizer, model, larger)

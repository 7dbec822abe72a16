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
    for guesses in (Draft(model=model, tokens=tokens), Lookup(ngram=1, tokens=tokens)):
        (one,) = generate(model, BYTES, ["?"], sampling, speculation=guesses)
        assert (one.text, one.ids, one.finish) == (plain.text, plain.ids, plain.finish)
        assert one.passes <= plain.passes == len(plain.ids)
        assert "".join(stream_text(model, BYTES, "?", sampling, speculation=guesses)) == plain.text


def test_completion_reports_its_passes() -> None:
    model = AheadDecoder(script_rule(BYTES.vocab_size, list(b"abcdefghij")), 40)
    sampling = Sampling(max_new_tokens=9)
    (one,) = generate(model, BYTES, ["?"], sampling, speculation=Draft(model=model, tokens=3))
    assert (one.text, one.passes) == ("abcdefghi", 3)
    assert generate(model, BYTES, ["?"], sampling)[0].passes == 9


TEXTS = ["one fish, two fish, red fish, blue fish\n" * 9]


def test_draft_needs_the_same_tokenizer_not_the_same_size() -> None:
    own, model = Tokenizer.train(Characters(), TEXTS), AheadDecoder(RULE, CONTEXT)
    same = Tokenizer.from_json(own.to_json())
    assert make_draft(own, model, same, tokens=3) == Draft(model=model, tokens=3)
    shifted = Tokenizer.train(Characters(), [TEXTS[0].replace("x", "y").replace("d", "z")])
    assert shifted.vocab_size == own.vocab_size
    with pytest.raises(UserError, match=r"tokenizer differs from the model's: id \d+ = '.' instead of id"):
        make_draft(own, model, shifted)
    larger = Tokenizer.train(BPE(vocab_size=300), TEXTS)
    with pytest.raises(UserError, match=rf"{larger.vocab_size} tokens instead of {own.vocab_size}; use a"):
        make_draft(own, model, larger)

from collections.abc import Sequence

import pytest
import torch
from byte_tokenizer import ByteTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_decoder import ToyDecoder, random_rule, script_rule

from tercet.generation import Completion, Sampling, generate, stream_text

CONTEXT = 9
PIECES = (b"END", b"EN", b"D", b"\xf0\x9f", b"\x99\x82", "né".encode(), b"\n\n", b"xEN", b"DD")
TOKENIZER = ByteTokenizer(PIECES)
IDS = {piece: 256 + number for number, piece in enumerate(PIECES)}


def script_decoder(*script: bytes | int, tokenizer: ByteTokenizer = TOKENIZER) -> ToyDecoder:
    ids = [piece if isinstance(piece, int) else IDS.get(piece, piece[0]) for piece in script]
    return ToyDecoder(script_rule(tokenizer.vocab_size, ids), max_len=40)


def generate_script(script: Sequence[bytes | int], **settings: object) -> tuple[Completion, list[str], ToyDecoder]:
    sampling = Sampling(**{"max_new_tokens": len(script), **settings})
    pieces = list(stream_text(script_decoder(*script), TOKENIZER, "?", sampling))
    model = script_decoder(*script)
    (completion,) = generate(model, TOKENIZER, ["?"], sampling)
    assert "".join(pieces) == completion.text
    assert all(pieces)
    return completion, pieces, model


def test_completion_reports_its_tokens_and_why_it_ended() -> None:
    completion, _, _ = generate_script([b"a", b"b", b"c"], seed=7)
    assert (completion.prompt, completion.text, completion.finish) == ("?", "abc", "length")
    assert (completion.ids, completion.seed, completion.truncated) == ((97, 98, 99), 7, False)
    assert completion.logprobs == pytest.approx([0.0] * 3, abs=1e-6)


def test_end_token_ends_the_row_and_has_no_text() -> None:
    completion, _, _ = generate_script([b"a", TOKENIZER.eos_id, b"b"])
    assert (completion.text, completion.finish, completion.ids) == ("a", "eos", (97, TOKENIZER.eos_id))


def test_stop_string_across_tokens_is_removed_and_ends_the_row() -> None:
    completion, pieces, model = generate_script([b"a", b"xEN", b"D", b"b", b"c"], stop=("END",))
    assert (completion.text, completion.finish) == ("ax", "stop")
    assert pieces == ["a", "x"]
    assert len(completion.ids) == len(completion.logprobs) == 3
    assert [name for name, _ in model.calls] == ["start", "step", "step"]  # the last two tokens were never computed


def test_held_back_text_is_emitted_if_the_stop_string_fails() -> None:
    completion, pieces, _ = generate_script([b"EN", b"EN", b"!", b"EN"], stop=("END",))
    assert (completion.text, completion.finish) == ("ENEN!EN", "length")
    assert pieces == ["EN", "EN!", "EN"]


def test_stop_string_within_one_token_or_at_the_last_token() -> None:
    assert generate_script([b"a", b"xEN", b"DD", b"a"], stop=("D",))[0].text == "axEN"
    completion, _, _ = generate_script([b"a", b"END"], stop=("END",))
    assert (completion.text, completion.finish) == ("a", "stop")


def test_characters_split_between_tokens_are_emitted_whole() -> None:
    completion, pieces, _ = generate_script([b"a", b"\xf0\x9f", b"\x99\x82", "né".encode(), b"!"])
    assert completion.text == "a🙂né!"
    assert pieces == ["a", "🙂", "né", "!"]


def test_incomplete_character_at_the_end_is_shown() -> None:
    assert generate_script([b"a", b"\xf0\x9f"])[0].text == "a\ufffd"
    assert generate_script([b"a", b"\xf0\x9f", TOKENIZER.eos_id])[0].text == "a\ufffd"


script_items = st.sampled_from([*PIECES, b"E", b"N", b"a", b"\xc3", b"\xa9", TOKENIZER.eos_id])


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(
    script=st.lists(script_items, min_size=1, max_size=12),
    stop=st.lists(st.sampled_from(["END", "EN", "ND", "DE", "é", "\ufffd", "\n\n", "aa"]), max_size=3),
)
def test_streamed_and_returned_text_are_the_text_before_the_first_stop(
    script: list[bytes | int], stop: list[str]
) -> None:
    completion, _, _ = generate_script(script, stop=tuple(stop))
    ids = list(completion.ids)
    whole_text = TOKENIZER.decode(ids)
    assert whole_text.startswith(completion.text)
    assert not any(stop_string in completion.text for stop_string in stop)
    if completion.finish == "stop":
        assert any(whole_text[len(completion.text) :].startswith(stop_string) for stop_string in stop)
    else:
        assert completion.text == whole_text
        assert completion.finish == ("eos" if ids[-1] == TOKENIZER.eos_id else "length")


RANDOM = random_rule(TOKENIZER.vocab_size, CONTEXT, scale=0.5)
PROMPTS = ["a", "bcd", "é🙂", "", "longer than the whole context", "a"]
WILD = Sampling(max_new_tokens=25, stop=("END", "D", "\n"), seed=3)


def test_prompts_have_the_same_completions_in_any_batch() -> None:
    batched = generate(ToyDecoder(RANDOM, CONTEXT), TOKENIZER, PROMPTS, WILD, samples=3)
    separate = [
        completion
        for prompt in PROMPTS
        for completion in generate(ToyDecoder(RANDOM, CONTEXT), TOKENIZER, [prompt], WILD, samples=3)
    ]
    assert batched == separate
    assert len({completion.finish for completion in batched}) > 1  # rows finish at different times


def test_sample_j_uses_the_seed_plus_j() -> None:
    model = ToyDecoder(RANDOM, CONTEXT)
    samples = generate(model, TOKENIZER, ["ab"], WILD, samples=4)
    assert [sample.seed for sample in samples] == [3, 4, 5, 6]
    assert len({sample.ids for sample in samples}) == 4
    assert samples[2] == generate(model, TOKENIZER, ["ab"], Sampling(**{**vars(WILD), "seed": 5}))[0]


def test_streamed_text_is_the_first_sample() -> None:
    model = ToyDecoder(RANDOM, CONTEXT)
    for prompt in PROMPTS:
        (completion,) = generate(model, TOKENIZER, [prompt], WILD)
        assert "".join(stream_text(model, TOKENIZER, prompt, WILD)) == completion.text


def test_overlong_prompt_is_marked_and_continued_from_its_end() -> None:
    model, greedy = ToyDecoder(RANDOM, CONTEXT), Sampling(max_new_tokens=1, temperature=0)
    exact, too_long = "abcdefghi", "0abcdefghi"
    first, second = generate(model, TOKENIZER, [exact, too_long], greedy)
    assert (first.truncated, second.truncated) == (False, True)
    tokens = TOKENIZER.encode(too_long)[5:]  # 10 tokens do not fit into 9: the oldest 5 are dropped
    assert second.ids == (int(RANDOM(tokens).argmax()),)


def test_empty_prompt_starts_after_the_end_of_text() -> None:
    (completion,) = generate(script_decoder(b"a"), TOKENIZER, [""], Sampling(max_new_tokens=1))
    assert (completion.prompt, completion.text) == ("", "a")


def test_empty_prompt_is_a_newline_without_an_end_token() -> None:
    without = ByteTokenizer(eos=False)
    model = ToyDecoder(RANDOM, 40)
    (empty, line) = generate(model, without, ["", "\n"], Sampling(max_new_tokens=4, top_k=1))
    assert (empty.prompt, empty.ids) == ("", line.ids)
    assert "".join(stream_text(model, without, "", Sampling(max_new_tokens=4, top_k=1))) == empty.text


def test_tokenizer_without_an_end_token_never_ends_early() -> None:
    without = ByteTokenizer(eos=False)
    model = ToyDecoder(lambda tokens: torch.zeros(256), 40)
    (completion,) = generate(model, without, ["a"], Sampling(max_new_tokens=30))
    assert (len(completion.ids), completion.finish) == (30, "length")


def test_zero_new_tokens_give_an_empty_completion() -> None:
    (completion,) = generate(script_decoder(b"a"), TOKENIZER, ["a"], Sampling(max_new_tokens=0))
    assert (completion.text, completion.ids, completion.finish) == ("", (), "length")


def test_samples_must_be_one_or_more() -> None:
    with pytest.raises(ValueError, match="samples=0 must be 1 or more"):
        generate(script_decoder(b"a"), TOKENIZER, ["a"], Sampling(), samples=0)

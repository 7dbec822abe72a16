"""Structured output: texts match their JSON schema or regex, for every kind of tokenizer."""

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema
import pytest
import tokenizers
import torch
from random_schemas import TEXT, lift_definitions, random_schema
from tokenizers import decoders, models, pre_tokenizers

from tercet.config import UserError
from tercet.generation import ChatModel, Lookup, Sampling, encode_prompt, generate, stream_text
from tercet.generation import decoding as decoding_module
from tercet.generation.decoding import Batch, StepDecoding, decoding_of
from tercet.generation.grammar import GrammarState, mask_logits, start_grammar
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.nn import Rotary
from tercet.tokens import BPE, Characters, Tokenizer, Unigram, WordPiece, Words

# Each definition refers to the next one, so that a value has to match the patterns of all.
CHAIN = {
    "items": {"$ref": "#/$defs/0"},
    "$defs": {str(n): {"pattern": f"a.{{{n}}}b", "anyOf": [{"$ref": f"#/$defs/{(n + 1) % 20}"}]} for n in range(20)},
}
CHAIN_OF_1100 = {str(n): {"$ref": f"#/d/{n + 1}"} for n in range(1100)}
REFERENCES = json.dumps({"$ref": "#/d/0", "d": CHAIN_OF_1100}, separators=(",", ":"))
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}


def sentencepiece(*, metaspace: bool) -> Tokenizer:
    """Return a tokenizer of Llama's kind, or of T5's kind, whose tokens have ▁ for spaces."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "the", "▁the", "▁t", "he", "é"]
    library = tokenizers.Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Metaspace() if metaspace else decoders.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(library)


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    match kind:
        case "bpe":
            return Tokenizer.train(BPE(vocab_size=310), TEXT)
        case "bpe with a prefix space":
            return Tokenizer.train(BPE(vocab_size=310, prefix_space=True), TEXT)
        case "characters":
            return Tokenizer.train(Characters(eos=True), TEXT)
        case "characters without eos":
            return Tokenizer.train(Characters(eos=False), TEXT)
        case "characters and bytes":
            return Tokenizer.train(Characters(byte_fallback=True), TEXT)
        case "wordpiece":
            return Tokenizer.train(WordPiece(vocab_size=120), ["the fox, then the hen. né!", *TEXT])
        case "unigram":
            return Tokenizer.train(Unigram(vocab_size=130), TEXT)
        case "words":
            return Tokenizer.train(Words(vocab_size=60), ["the fox and the hen"])
        case _:
            return sentencepiece(metaspace=kind == "metaspace")


@cache
def model_of(kind: str) -> DecoderOnly:
    stack = StackSpec(d_model=24, n_layers=1, n_heads=3, d_ff=31, position=Rotary())
    return DecoderOnly(
        DecoderOnlySpec(vocab_size=tokenizer_of(kind).vocab_size, max_len=300, stack=stack), seed=4
    ).eval()


def started(kind: str, *, after: Sequence[int] = (), **settings: Any) -> GrammarState:
    state = start_grammar(tokenizer_of(kind), Sampling(**settings), after=after)
    assert state is not None
    return state


KINDS = [
    "bpe",
    "bpe with a prefix space",
    "characters",
    "characters and bytes",
    "wordpiece",
    "unigram",
    "sentencepiece",
]
TEXTS = ["the", "the fox", "then", "hen.", "he\nt", "né", "é", "a the", "{[", "tt!"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", ["", "the"])
def test_mask_has_exactly_the_tokens_that_lead_to_an_expressible_text(kind: str, prompt: str) -> None:
    tokenizer, rng = tokenizer_of(kind), random.Random(7)
    prompt_ids = tokenizer.encode(prompt)

    tables = tokenizer.byte_tables
    assert tables is not None
    first, later = tables

    def text_of(ids: Sequence[int]) -> bytes:
        return b"".join((later if n or prompt_ids else first)[token] for n, token in enumerate(ids))

    everything = set(later if prompt_ids else first)

    def ways(text: bytes, *, begins: bool) -> bool:
        """Return whether tokens give the text, by trying all of them."""
        pieces = everything if begins else set(later)
        return not text or any(
            piece and text.startswith(piece) and ways(text[len(piece) :], begins=False) for piece in pieces
        )

    language = [text.encode() for text in TEXTS if ways(text.encode(), begins=True)]
    regex = "|".join(text.replace(".", r"\.").replace("{[", r"\{\[") for text in TEXTS)
    assert language
    for _ in range(12):
        state, ids = started(kind, after=prompt_ids, regex=regex), list[int]()
        while not state.is_complete:
            so_far = text_of(ids)
            expected = {
                token
                for token in range(tokenizer.vocab_size)
                if (piece := text_of([*ids, token])[len(so_far) :])
                and any(
                    text.startswith(so_far + piece) and ways(text[len(so_far + piece) :], begins=False)
                    for text in language
                )
            }
            if so_far in language:
                expected |= set(tokenizer.end_ids)
            assert set(state.mask.nonzero().flatten().tolist()) == expected
            token = rng.choice(sorted(expected))
            if token in tokenizer.end_ids:
                break
            ids.append(token)
            state.advance(token)
        decoder = tokenizer.stream(after=prompt_ids)
        assert "".join(map(decoder.push, ids)) + decoder.flush() == text_of(ids).decode()
        assert text_of(ids) in language


@pytest.mark.parametrize("kind", [*KINDS, "metaspace", "words"])
def test_byte_tables_give_the_decoded_text(kind: str) -> None:
    tokenizer, rng = tokenizer_of(kind), random.Random(3)
    tables = tokenizer.byte_tables
    assert tables is not None
    for _ in range(200):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(1, 6))]
        shown = [token for token in ids if tables.later[token]]
        data = b"".join((tables.later if n else tables.first)[token] for n, token in enumerate(shown))
        try:
            assert data.decode() == tokenizer.decode(ids)
        except UnicodeDecodeError:  # invalid bytes are replaced in other ways
            continue


def count_valid(kind: str, numbers: range) -> int:
    """Check a text for each random schema, and return the number of complete ones."""
    tokenizer, model = tokenizer_of(kind), model_of(kind)
    complete = 0
    for number in numbers:
        rng = random.Random(number)
        schema = lift_definitions(random_schema(rng, all_bytes="char" not in kind and kind != "unigram"))
        sampling = Sampling(
            max_new_tokens=200, seed=number, temperature=rng.choice((0.5, 1.0, 2.0)), json_schema=schema
        )
        (text,) = generate(model, tokenizer, ["x"], sampling)
        if text.finish != "length":
            jsonschema.validate(json.loads(text.text, strict=True), schema)
            complete += 1
    return complete


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "characters", "unigram", "sentencepiece"])
def test_texts_of_random_schemas_are_valid(kind: str) -> None:
    assert count_valid(kind, range(8)) >= 7


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["bpe", "characters", "unigram", "sentencepiece"])
def test_texts_of_a_thousand_random_schemas_are_valid(kind: str) -> None:
    assert count_valid(kind, range(1000)) >= 950


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.1}, {"min_p": 0.9}, {}])
@pytest.mark.parametrize("kind", ["bpe", "characters without eos"])
def test_filters_choose_among_the_allowed_tokens(kind: str, settings: dict[str, Any]) -> None:
    sampling = Sampling(max_new_tokens=80, json_schema=OBJECT, repetition_penalty=1.3, **settings)
    texts = generate(model_of(kind), tokenizer_of(kind), ["", "y"], sampling, samples=3)
    for text in texts:
        assert text.finish == "stop"
        jsonschema.validate(json.loads(text.text), OBJECT)
    streamed = "".join(stream_text(model_of(kind), tokenizer_of(kind), "y", sampling))
    assert streamed == texts[3].text


def test_text_ends_if_nothing_may_follow_and_not_before() -> None:
    model, tokenizer = model_of("bpe"), tokenizer_of("bpe")
    (text,) = generate(model, tokenizer, ["a"], Sampling(regex="[ab]{5}"))
    assert (text.finish, len(text.text)) == ("stop", 5)
    (text,) = generate(model, tokenizer, ["a"], Sampling(regex="[ab]{50}", max_new_tokens=3))
    assert text.finish == "length"
    finishes = [text.finish for text in generate(model, tokenizer, ["a"], Sampling(regex="[ab]{1,9}"), samples=40)]
    assert {"eos", "stop"} >= set(finishes)
    assert "eos" in finishes  # the model may end at any letter, with one of three tokens


def test_stop_strings_end_structured_texts_as_well() -> None:
    (text,) = generate(model_of("bpe"), tokenizer_of("bpe"), ["a"], Sampling(regex="x{9}:y{9}", stop=(":",)))
    assert (text.text, text.finish) == ("x" * 9, "stop")


def test_rows_without_a_grammar_keep_their_logits() -> None:
    logits = torch.randn(3, tokenizer_of("bpe").vocab_size + 2)
    masked = mask_logits(logits, [None, started("bpe", regex="a"), None])
    assert torch.equal(masked[[0, 2]], logits[[0, 2]])
    assert (
        masked[1].isfinite().nonzero().flatten().tolist() == started("bpe", regex="a").mask.nonzero().flatten().tolist()
    )
    assert mask_logits(logits, [None, None, None]) is logits


def test_batch_with_grammars_uses_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_module, "can_capture", lambda model, device: True)
    batch = Batch(
        rows=[[1]], sources=None, source_pad=0, sampling=Sampling(), forbidden=frozenset(), seeds=[0],
        grammars=[started("bpe", regex="a")],
    )  # fmt: skip
    with decoding_of(model_of("bpe"), batch) as decoding:
        assert isinstance(decoding, StepDecoding)


def test_chat_answers_with_the_grammar() -> None:
    class Template:
        def encode(self, messages: Any) -> list[int]:
            return encode_prompt(tokenizer_of("bpe"), messages[-1]["content"])

    template: Any = Template()
    chat = ChatModel(model_of("bpe"), tokenizer_of("bpe"), template)
    _, answer = chat.ask([{"role": "user", "content": "hi"}], {"json_schema": OBJECT})
    jsonschema.validate(json.loads("".join(answer)), OBJECT)
    assert answer.finish == "stop"


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("bpe", {"json_schema": "{"}, "json_schema: not valid JSON"),
        ("bpe", {"json_schema": "[1]"}, "must be a JSON object"),
        ("bpe", {"json_schema": {"type": "strin"}}, "json_schema: Invalid type: strin"),
        ("bpe", {"json_schema": {"type": "string", "pattern": "("}}, "json_schema: unclosed group"),
        ("bpe", {"json_schema": {"uniqueItems": True}}, 'Unimplemented keys: ["uniqueItems"]'),
        ("bpe", {"json_schema": {"$ref": "https://example.org/x"}}, "Default retriever does not fetch"),
        ("bpe", {"json_schema": {"minLength": 5, "maxLength": 2, "type": "string"}}, "greater than maxLength"),
        ("bpe", {"json_schema": '{"a":' * 70 + "1" + "}" * 70}, "nested more than 64 levels deep"),
        ("bpe", {"json_schema": {"description": "x" * 70_000}}, "characters exceed the maximum of 32,768"),
        ("bpe", {"json_schema": {"allOf": [{"pattern": f"a.{{{n}}}b"} for n in range(20)]}}, "more than 3 patterns"),
        ("bpe", {"json_schema": CHAIN}, "more than 3 patterns"),
        ("bpe", {"json_schema": REFERENCES}, "too long a chain of references"),
        ("bpe", {"regex": "("}, "regex: unclosed group"),
        ("bpe", {"regex": "(?=a)b"}, "regex: look-around"),
        ("characters", {"json_schema": {"const": "né"}}, "it has no 'é' (U+00E9) as a token"),
        (
            "characters",
            {"json_schema": {"type": "string", "pattern": "a"}},
            "pattern requires a tokenizer with all bytes",
        ),
        ("characters", {"regex": "né"}, "it has no 'é' (U+00E9) as a token"),
        ("wordpiece", {"json_schema": OBJECT}, "it has no ' ' (U+0020), '\"' (U+0022)"),
        ("words", {"regex": "the fox"}, "it has no ' ' (U+0020), 'e' (U+0065)"),
    ],
)
def test_unusable_grammar_is_rejected_in_one_line(kind: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        generate(model_of(kind), tokenizer_of(kind), ["a"], Sampling(**settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_tokenizer_without_fixed_bytes_is_rejected() -> None:
    library = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    library.decoder = decoders.CTC()
    with pytest.raises(UserError, match="not supported for this tokenizer"):
        start_grammar(Tokenizer(library), Sampling(regex="a"))


def test_grammar_excludes_draft_tokens_and_a_second_grammar() -> None:
    with pytest.raises(UserError, match="draft and lookup cannot be combined"):
        generate(model_of("bpe"), tokenizer_of("bpe"), ["a"], Sampling(regex="a"), speculation=Lookup())
    with pytest.raises(ValueError, match="exclude each other"):
        Sampling(regex="a", json_schema={})

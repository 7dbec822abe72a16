"""A tokenizer in a GGUF file gives the original ids and those of `transformers`; unsupported ones are rejected."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from folders_of_others import words
from gguf_models import BYTES, llama, save_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from tercet.checkpoint import convert, load_model
from tercet.checkpoint.foreign.gguf_file import GgufFile
from tercet.config import UserError
from tercet.generation import encode_prompt
from tercet.tokens import BPE, Characters, Tokenizer, Unigram, WordPiece, Words
from tercet.tokens.gguf import KEY, LLAMA_SPLIT, SPLITS, from_settings, to_settings
from tercet.tokens.trainers import BYTE_TOKENS

ODD = st.text(st.one_of(st.sampled_from("abcs't the12 \n\t\r.,!?²½é日'\u0301\u00a0<>|"), st.characters(codec="utf-8")))
TRIES = settings(max_examples=60, deadline=None)
ASCII = Tokenizer.train(Characters(pad=True), ["".join(map(chr, range(9, 127)))])
UNICODE = Tokenizer.train(Characters(byte_fallback=True), ["the cat é"])


def round_trip(tokenizer: Tokenizer) -> Tokenizer:
    return from_settings(to_settings(tokenizer))


def split_otherwise(tokenizer: Tokenizer, splits: tuple[str, ...], **model: Any) -> Tokenizer:
    """Return a tokenizer with the same merges and other splits, written as `transformers` does."""
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(split), "isolated") for split in splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    structure = json.loads(library.to_str())
    structure["model"] |= model
    return Tokenizer.from_json(json.dumps(structure))


@pytest.mark.parametrize("pre", SPLITS)
def test_byte_level_bpe_is_restored(pre: str) -> None:
    tokenizer = split_otherwise(BYTES, SPLITS[pre], ignore_merges=pre == "llama-bpe")
    assert to_settings(tokenizer)[f"{KEY}pre"] == pre
    restored = round_trip(tokenizer)
    assert (restored.pad_id, restored.bos_id, restored.eos_id) == (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    assert restored.special_ids == tokenizer.special_ids
    if pre == "gpt-2":
        assert restored.hash == BYTES.hash

    @TRIES
    @given(text=ODD)
    def check(text: str) -> None:
        assert restored.encode(text) == tokenizer.encode(text)
        assert restored.decode(restored.encode(text)) == text

    check()


def test_equivalent_splits_are_recognized() -> None:
    library = tokenizers.Tokenizer.from_str(BYTES.to_json())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = Tokenizer(library)
    assert to_settings(tokenizer)[f"{KEY}pre"] == "smollm"
    restored = round_trip(tokenizer)
    assert [restored.encode(text) for text in ("in 1984²", " 12 3")] == [
        tokenizer.encode(t) for t in ("in 1984²", " 12 3")
    ]
    ranks = split_otherwise(
        BYTES, (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",)
    )
    assert round_trip(ranks).hash == BYTES.hash


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_ids_match_transformers(pre: str, tmp_path: Path) -> None:
    """`transformers` splits as GPT-2 does for every name except a Llama's."""
    ours = split_otherwise(BYTES, SPLITS[pre], ignore_merges=pre == "llama-bpe").with_opening(
        [1] if pre == "llama-bpe" else []
    )
    template = "{{ bos_token }}{{ messages[0].content }}"
    folder = convert(save_folder(tmp_path / "ours", llama(), ours, template), tmp_path / "theirs", "gguf")
    theirs = transformers.AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
    restored = load_model(folder)
    assert theirs.chat_template == restored.chat_template == template
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.bos_token_id) == (2, 0, 1)
    draw = random.Random(0)
    texts = ["".join(draw.choices("the cats sat on 1984 \n'\té日!", k=30)) for _ in range(100)]
    for text in texts:
        assert encode_prompt(restored.tokenizer, text) == encode_prompt(ours, text) == theirs(text).input_ids


@pytest.mark.parametrize("tokenizer", [ASCII, UNICODE])
def test_character_tokenizers_are_restored(tokenizer: Tokenizer) -> None:
    restored = round_trip(tokenizer)
    assert restored.hash == tokenizer.hash
    assert restored.kind == "characters"
    assert (restored.eos_id, restored.pad_id) == (tokenizer.eos_id, tokenizer.pad_id)


def test_characters_match_transformers(tmp_path: Path) -> None:
    model = llama(vocab_size=ASCII.vocab_size)
    folder = convert(save_folder(tmp_path / "ours", model, ASCII), tmp_path / "theirs", "gguf")
    theirs = transformers.AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
    text = "The cat  sat\non 12 mats; 'twas <fine>."
    assert theirs(text).input_ids == ASCII.encode(text)


def test_opening_tokens_are_kept() -> None:
    assert BYTES.bos_id == 1
    with_bos = BYTES.with_opening([1])
    assert to_settings(with_bos)[f"{KEY}add_bos_token"] is True
    restored = round_trip(with_bos)
    assert encode_prompt(restored, "cat") == [1, *BYTES.encode("cat")]
    fields = to_settings(BYTES)
    assert from_settings({**fields, f"{KEY}pre": "llama-bpe"}).opening == ()
    del fields[f"{KEY}add_bos_token"]
    assert from_settings(fields).opening == ()
    assert from_settings({**fields, f"{KEY}pre": "llama-bpe"}).opening == (1,)


def test_user_tokens_and_unused_ids_are_kept() -> None:
    structure = json.loads(BYTES.to_json())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    structure["model"]["vocab"]["zz"] = 305
    structure["added_tokens"].append({"id": 306, "content": "<think> ", **plain})
    tokenizer = Tokenizer.from_json(json.dumps(structure))
    restored, number = round_trip(tokenizer), tokenizer.id_of("<think> ")
    assert number is not None
    assert restored.vocab_size == tokenizer.vocab_size == 306
    assert restored.encode("a<think> b") == [*BYTES.encode("a"), number, *BYTES.encode("b")]
    assert restored.decode([number, 305]) == "<think> zz"
    assert restored.encode("<eos>") == BYTES.encode("<eos>")


def with_normalizer() -> Tokenizer:
    library = tokenizers.Tokenizer.from_str(BYTES.to_json())
    library.normalizer = normalizers.NFC()
    return Tokenizer(library)


def with_stripping() -> Tokenizer:
    library = tokenizers.Tokenizer.from_str(BYTES.to_json())
    library.add_tokens([AddedToken("<think>", lstrip=True)])
    return Tokenizer(library)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (Tokenizer(words(11)), r"not a byte-level BPE but whole words, .* tokenizer.kind: bpe, gpt2 or characters"),
        (Tokenizer.train(Words(vocab_size=9), ["a b a b"]), r"not a byte-level BPE but whole words"),
        (Tokenizer.train(Unigram(vocab_size=40), ["a b a b the cat"]), r"not a byte-level BPE but Unigram"),
        (Tokenizer.train(WordPiece(vocab_size=40), ["a b a b the cat"]), r"not a byte-level BPE but WordPiece"),
        (Tokenizer.train(BPE(vocab_size=270, eos=False), ["a b"]), r"no end token, .*eos: true"),
        (Tokenizer.train(BPE(vocab_size=270, prefix_space=True), ["a b"]), r"adds a space.*prefix_space: false"),
        (Tokenizer.train(Characters(), ["aé"]), r"has 'é' but not its bytes, .*byte_fallback: true"),
        (
            Tokenizer.train(Characters(byte_fallback=True), ["a▁"]),
            r"the alphabet has '▁', which GGUF uses for a space",
        ),
        (split_otherwise(BYTES, (r"\w+",)), r"does not support the splitting rule"),
        (
            split_otherwise(BYTES, SPLITS["gpt-2"], ignore_merges=True),
            r"does not support the tokenizer's merge options",
        ),
        (split_otherwise(BYTES, (LLAMA_SPLIT,)), r"does not support the tokenizer's merge options"),
        (BYTES.with_opening([0]), r"begin with the ids \(0,\), but llama\.cpp supports only bos or nothing"),
        (with_normalizer(), r"changes a text before splitting it"),
        (with_stripping(), r"'<think>' absorbs adjacent text"),
    ],
)
def test_unsupported_tokenizer_is_rejected(tokenizer: Tokenizer, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        to_settings(tokenizer)
    assert "\n" not in str(error.value)


def pieces(token_scores: dict[str, float], **changes: Any) -> dict[str, Any]:
    """Return the settings of a sentencepiece vocabulary as llama.cpp's converter writes them."""
    names = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *token_scores]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(token_scores)]
    fields = {
        "model": "llama", "tokens": names, "scores": [0.0] * 259 + list(token_scores.values()), "token_type": kinds,
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **changes,
    }  # fmt: skip
    return {f"{KEY}{name}": value for name, value in fields.items()}


def merged_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """Merge by sentencepiece's definition: the first of the best-scoring adjacent pairs, repeatedly."""
    parts = list(f" {text}".replace(" ", "▁")) if text else []
    while True:
        joined = [left + right for left, right in pairwise(parts)]
        candidates = [place for place, piece in enumerate(joined) if piece in scores]
        if not candidates:
            return [name for part in parts for name in ([part] if part in scores else byte_tokens(part))]
        best = max(candidates, key=lambda place: (scores[joined[place]], -place))
        parts[best : best + 2] = [joined[best]]


def byte_tokens(text: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in text.encode()]


@pytest.mark.slow
@TRIES
@given(draw=st.randoms(use_true_random=False), text=st.text("aab  é", max_size=24))
def test_sentencepieces_are_merged_by_score(draw: random.Random, text: str) -> None:
    vocabulary = list("▁ab")
    for _ in range(draw.randint(2, 14)):
        vocabulary.append(draw.choice(vocabulary) + draw.choice(vocabulary))
    vocabulary = list(dict.fromkeys(vocabulary))
    scores = dict(zip(vocabulary, map(float, draw.sample(range(-99, 0), len(vocabulary))), strict=True))
    tokenizer = from_settings(pieces(scores))
    names = pieces(scores)[f"{KEY}tokens"]
    ids = tokenizer.encode(text)
    assert [names[number] for number in ids] == merged_by_score(text, scores)
    assert tokenizer.decode(ids) == text
    assert encode_prompt(tokenizer, text) == [1, *ids]


def test_sentencepieces_match_transformers() -> None:
    scores = {"▁": -9.0, "a": -8.0, "b": -7.0, "ab": -1.0, "▁a": -2.0, "▁ab": -3.0, "▁▁": -4.0, "ba": -5.0}
    settings_ = pieces(scores)
    names = settings_[f"{KEY}tokens"]
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = [("a", "b"), ("▁", "a"), ("▁", "ab"), ("▁a", "b"), ("▁", "▁"), ("b", "a")]
    theirs = transformers.LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)
    tokenizer = from_settings(settings_)
    for text in ("ab", "a ba  b", "abab é", "b\n a"):
        assert encode_prompt(tokenizer, text) == theirs(text).input_ids, text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, r"a tokenizer of the kind 'bert'; supported: gpt2 and llama"),
        ({"model": None}, r"it has no tokenizer; supported"),
        ({"tokens": None}, r"ggml\.tokens is missing"),
        ({"tokens": [1, 2]}, r"ggml\.tokens is not a list of str"),
        ({"tokens": []}, r"token_type has 262 entries, but tokenizer\.ggml\.tokens has 0"),
        ({"tokens": ["a"] * 262}, r"the token 'a' has two ids"),
        ({"scores": [0.0]}, r"scores has 1 entries, but tokenizer\.ggml\.tokens has 262"),
        ({"scores": None}, r"ggml\.scores is missing"),
        ({"eos_token_id": 262}, r"eos_token_id is 262, but ids of tokens are 0 to 261"),
        ({"bos_token_id": "a"}, r"bos_token_id is 'a'"),
        ({"add_bos_token": 3}, r"add_bos_token is 3; it must be true or false"),
        ({"add_space_prefix": "x"}, r"add_space_prefix is 'x'; it must be"),
        ({"scores": [0.0] * 262}, r"two of its tokenizer's pieces have the same score"),
    ],
)
def test_broken_settings_are_rejected(changes: dict[str, Any], message: str) -> None:
    fields = pieces({"a": -1.0, "aa": -2.0, "aaa": -3.0}, **changes)
    with pytest.raises(UserError, match=message):
        from_settings({name: value for name, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "tekken"}, r"splits text as 'tekken', which Tercet does not support; supported: gpt-2, smollm"),
        ({"pre": 3}, r"splits text as '3'"),
        ({"merges": ["a b c"]}, r"tokens and merges are not a valid tokenizer"),
        ({"merges": ["日 本"]}, r"tokens and merges are not a valid tokenizer"),
        ({"merges": None}, r"merges is missing"),
    ],
)
def test_broken_merges_are_rejected(changes: dict[str, Any], message: str) -> None:
    fields = {**to_settings(BYTES), **{f"{KEY}{name}": value for name, value in changes.items()}}
    with pytest.raises(UserError, match=message) as error:
        from_settings({name: value for name, value in fields.items() if value is not None})
    assert "\n" not in str(error.value)


def test_old_file_needs_only_required_settings() -> None:
    fields = to_settings(BYTES)
    required = {f"{KEY}{name}": fields[f"{KEY}{name}"] for name in ("model", "tokens", "merges")}
    tokenizer = from_settings(required)
    assert tokenizer.encode("the cat") == split_otherwise(BYTES, SPLITS["default"]).encode("the cat")
    assert tokenizer.opening == ()


def test_chat_template_is_in_the_file(tmp_path: Path) -> None:
    folder = convert(save_folder(tmp_path / "ours", llama(), template="{{ ä }}"), tmp_path / "theirs", "gguf")
    assert GgufFile(folder / "model.gguf").settings["tokenizer.chat_template"] == "{{ ä }}"
    assert load_model(folder).chat_template == "{{ ä }}"
    assert load_model(convert(folder, tmp_path / "back")).chat_template == "{{ ä }}"

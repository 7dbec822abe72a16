"""Text must come back as it went in, whole or streamed, and what cannot be encoded must be named."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.config import UserError, parse
from tercet.data.specs import DataSpec
from tercet.tokens import BPE, Characters, Tokenizer, TokenizerFile, Words

TEXT = "To be, or not to be:\r\nthat is the question 12 times.\n\n\tتجربة عربية 🙂 naïve\0end <eos> <pad> <unk>"
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
ALPHABET = "".join(sorted(set(TEXT)))

SPECS = {
    "characters": Characters(pad=True),
    "bytes": Characters(byte_fallback=True),
    "words": Words(pad=True),
    "bpe": BPE(vocab_size=300, pad=True),
}
MADE = {name: Tokenizer.train(spec, [TEXT] * 3) for name, spec in SPECS.items()}
LOSSLESS = [MADE["bytes"], MADE["bpe"]]


@pytest.fixture(params=list(MADE))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return MADE[request.param]


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = tokenizer.stream()
    return "".join([stream.push(token) for token in ids] + [stream.flush()])


def test_the_training_text_comes_back(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.count_bytes(np.array(ids)) == len(TEXT.encode())
    assert "".join(tokenizer.tokens(tokenizer.encode("To be"))) == "To be"


@pytest.mark.parametrize("tokenizer", LOSSLESS, ids=lambda tokenizer: tokenizer.kind)
@given(text=TEXTS)
def test_bytes_take_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(st.sampled_from("ab é'\u0301 \n\r\t1٣!<>🙂"), max_size=40))
def test_words_are_lossless_on_what_they_know(text: str) -> None:
    words = Tokenizer.train(Words(), [text])
    assert words.decode(words.encode(text)) == text


@given(ids=st.lists(st.integers(0, 400), max_size=30))
def test_stream_equals_decode_for_any_ids(ids: list[int]) -> None:
    for tokenizer in MADE.values():
        assert streamed(tokenizer, ids) == tokenizer.decode(ids)


def test_stream_waits_for_a_whole_character() -> None:
    ids, stream = MADE["bytes"].encode("€"), MADE["bytes"].stream()
    assert len(ids) == 3
    assert [stream.push(token) for token in ids] == ["", "", "€"]
    stream.push(ids[0])
    assert stream.flush() == "\ufffd"


@given(text=TEXTS)
@settings(max_examples=50)
def test_the_library_alone_gives_the_same(text: str) -> None:
    for tokenizer in [*LOSSLESS, MADE["words"]]:
        library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
        library.encode_special_tokens = True
        assert tokenizer.encode(text) == library.encode(text).ids
        if tokenizer.unk_id is None:  # the library hides <unk>; we show it
            assert tokenizer.decode(tokenizer.encode(text)) == library.decode(tokenizer.encode(text))


@given(ids=st.lists(st.integers(0, 299), max_size=30))
def test_broken_bytes_are_replaced_as_the_library_does(ids: list[int]) -> None:
    library = tokenizers.Tokenizer.from_str(MADE["bpe"].to_json())
    assert MADE["bpe"].decode(ids) == library.decode(ids)


def test_json_keeps_everything(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (again.kind, again.hash, again.vocab_size) == (tokenizer.kind, tokenizer.hash, tokenizer.vocab_size)
    assert (again.pad_id, again.eos_id, again.unk_id) == (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id)
    assert again.encode(TEXT) == tokenizer.encode(TEXT)
    assert Tokenizer.train(TokenizerFile(path=str(tmp_path / "tokenizer.json")), []).hash == tokenizer.hash
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("To be").ids == again.encode("To be")


def test_kinds() -> None:
    assert [tokenizer.kind for tokenizer in MADE.values()] == ["characters", "characters", "words", "bpe"]


def test_special_tokens_come_first_and_never_from_text(tokenizer: Tokenizer) -> None:
    expected = [0, 1] if tokenizer.pad_id is not None else [0]
    assert sorted(tokenizer.special_ids) == expected
    assert tokenizer.eos_id == expected[-1]
    ids = tokenizer.encode("<eos><pad> <eos>\n<eos>")
    assert not tokenizer.special_ids & set(ids)
    if tokenizer.unk_id is None:
        assert tokenizer.decode([*ids, tokenizer.eos_id or 0]) == "<eos><pad> <eos>\n<eos>"
    assert tokenizer.decode([tokenizer.eos_id or 0], skip_special=False) == "<eos>"


def test_a_much_repeated_special_name_is_not_learnt() -> None:
    learnt = Tokenizer.train(BPE(vocab_size=400), ["<eos>" * 50 + " <eos>" * 50])
    assert learnt.eos_id not in learnt.encode("<eos> <eos><eos>")


def test_without_special_tokens_the_vocabulary_is_the_alphabet() -> None:
    plain = Tokenizer.train(Characters(eos=False), ["banana"])
    assert (plain.vocab_size, plain.eos_id, plain.pad_id, plain.special_ids) == (3, None, None, frozenset())
    assert plain.encode("nab") == [2, 0, 1]


def test_alphabet_keeps_its_order() -> None:
    assert Tokenizer.train(Characters(eos=False, alphabet="cab"), []).encode("abc") == [1, 2, 0]


def test_unknown_words_are_visible() -> None:
    words = Tokenizer.train(Words(vocab_size=6), ["the cat and the dog and the end"])
    assert words.vocab_size == 6
    assert words.encode(" the zebra")[1] == words.unk_id
    assert words.decode(words.encode(" the zebra")) == " the<unk>"


def test_unknown_characters_are_named_with_the_remedy() -> None:
    few = Tokenizer.train(Characters(), ["abc"])
    with pytest.raises(UserError, match=r"'z' \(U\+007A\), '🙂' \(U\+1F642\); set byte_fallback: true, or"):
        few.encode("cab🙂z")
    with pytest.raises(UserError, match="and 3 more"):
        few.encode("12345678")


@pytest.mark.parametrize("surrogate", ["\ud800", "ab\udfff"])
def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer, surrogate: str) -> None:
    with pytest.raises(UserError, match=r"half a surrogate pair \(U\+D"):
        tokenizer.encode(surrogate)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_training_refuses_half_a_surrogate_pair(spec: Characters | Words | BPE) -> None:
    if not isinstance(spec, Characters):
        with pytest.raises(UserError, match="surrogate"):
            Tokenizer.train(spec, ["ab\ud800"])


def test_nothing_encodes_to_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == streamed(tokenizer, []) == ""


def test_ids_outside_the_vocabulary_say_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size, 10**9, -1]) == streamed(tokenizer, [tokenizer.vocab_size, -1]) == ""


def test_batches_equal_singles(tokenizer: Tokenizer) -> None:
    batch = tokenizer.encode_batch(["To be", "", TEXT])
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text) for text in ("To be", "", TEXT)]
    assert all(ids.dtype == np.uint32 for ids in batch)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "bpe", "vocab_size": 100}, "bpe needs vocab_size >= 257"),
        ({"kind": "words", "vocab_size": 1}, "vocab_size >= 4"),
        ({"kind": "characters", "alphabet": "aba"}, "'a' more than once"),
        ({"kind": "characters", "alphabet": ""}, "alphabet is empty"),
    ],
)
def test_impossible_settings_say_why(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(DataSpec, {"source": "animals", "tokenizer": settings})


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No such file.*give the path of a tokenizer\.json"):
        Tokenizer.load(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(UserError, match=r"is not a tokenizer\.json"):
        Tokenizer.load(tmp_path / "other.json")


def test_a_foreign_tokenizer_streams_as_it_decodes() -> None:
    model = tokenizers.models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "a": 3, "!": 4}, unk_token="[UNK]")
    library = tokenizers.Tokenizer(model)
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.decoder = tokenizers.decoders.WordPiece()
    foreign = Tokenizer.from_json(library.to_str())
    ids = foreign.encode("Playing a play!")
    assert (foreign.kind, foreign.unk_id, ids) == ("file", 0, [1, 2, 3, 1, 4])
    assert streamed(foreign, ids) == foreign.decode(ids) == "playing a play!"
    assert foreign.tokens([1, 2]) == ["play", "##ing"]


SPACES = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁": 257, "▁the": 258, "\ufffd": 259}


@given(ids=st.lists(st.integers(0, 259) | st.sampled_from([0xE3, 0x83, 0xAD, 257, 258, 259]), max_size=9))
def test_a_foreign_stream_waits_for_the_end_of_a_run_of_bytes(ids: list[int]) -> None:
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=SPACES, merges=[], byte_fallback=True))
    steps = tokenizers.decoders
    library.decoder = steps.Sequence(
        [steps.Replace("▁", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    foreign = Tokenizer(library)
    assert foreign.kind == "file"
    assert streamed(foreign, ids) == foreign.decode(ids)


def test_shakespeare_has_65_characters() -> None:
    folder = os.environ.get("TERCET_DATA")
    if not folder:
        pytest.skip("TERCET_DATA is not set")
    text = Path(folder, "shakespeare", "input.txt").read_text(encoding="utf-8")
    characters = Tokenizer.train(Characters(eos=False), [text])
    assert characters.vocab_size == 65
    start = time.process_time()
    assert len(characters.encode_batch([text])[0]) == 1_115_394
    assert time.process_time() - start < 1

"""Text is decoded exactly as it was encoded, whole or streamed, and text that cannot be encoded is reported."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError, parse
from tercet.data.specs import TextSpec
from tercet.tokens import BPE, Characters, Tokenizer, TokenizerFile, TrainableTokenizerSpec, Unigram, Words

TEXT = "To be, or not to be:\r\nthat is the question 12 times.\n\n\tتجربة عربية 🙂 naïve\0end <eos> <pad> <unk>"
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
ALPHABET = "".join(sorted(set(TEXT)))

SPECS = {
    "characters": Characters(pad=True),
    "bytes": Characters(byte_fallback=True),
    "words": Words(pad=True),
    "bpe": BPE(vocab_size=300, pad=True),
    "unigram": Unigram(pad=True, bos=True),
    "words after a space": Words(pad=True, bos=True, prefix_space=True),
    "bpe after a space": BPE(vocab_size=300, pad=True, bos=True, prefix_space=True),
    "unigram after a space": Unigram(prefix_space=True),
}
TOKENIZERS = {name: Tokenizer.train(spec, [TEXT] * 3) for name, spec in SPECS.items()}
LOSSLESS = [TOKENIZERS["bytes"], TOKENIZERS["bpe"], TOKENIZERS["bpe after a space"]]
AFTER_A_SPACE = [tokenizer for tokenizer in TOKENIZERS.values() if tokenizer.prefix_space]


@pytest.fixture(params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def stream_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = tokenizer.stream()
    return "".join([stream.push(token) for token in ids] + [stream.flush()])


def test_training_text_is_decoded_exactly(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.count_bytes(np.array(ids)) == len(TEXT.encode())
    assert "".join(tokenizer.tokens(tokenizer.encode("To be"))) == " " * tokenizer.prefix_space + "To be"


@pytest.mark.parametrize("tokenizer", LOSSLESS, ids=lambda tokenizer: tokenizer.kind)
@given(text=TEXTS)
def test_byte_tokenizers_encode_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("prefix_space", [False, True])
@pytest.mark.parametrize("kind", [Words, Unigram])
@given(text=st.text(st.sampled_from("ab é'-’\u0301 \n\r\t1٣!<>🙂▁\xa0\u2028"), max_size=40))
def test_words_and_pieces_are_lossless_on_known_text(
    kind: type[Words | Unigram], prefix_space: bool, text: str
) -> None:
    tokenizer = Tokenizer.train(kind(prefix_space=prefix_space), [text])
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == stream_text(tokenizer, ids) == text
    assert tokenizer.count_bytes(np.array(ids, dtype=np.int64)) == len(text.encode())


@pytest.mark.parametrize("tokenizer", AFTER_A_SPACE, ids=lambda tokenizer: tokenizer.kind)
@given(before=st.sampled_from(["", " ", "  ", "   ", "\n", " \n ", "\xa0"]), words=st.sampled_from(["", "be", "be or"]))
def test_prefix_space_is_added_and_removed(tokenizer: Tokenizer, before: str, words: str) -> None:
    tokenizer = Tokenizer.train(SPECS[f"{tokenizer.kind} after a space"], [TEXT, before + words])
    ids = tokenizer.encode(before + words)
    assert tokenizer.decode(ids) == stream_text(tokenizer, ids) == before + words
    assert tokenizer.count_bytes(np.array(ids, dtype=np.int64)) == len((before + words).encode())


@pytest.mark.parametrize("tokenizer", AFTER_A_SPACE, ids=lambda tokenizer: tokenizer.kind)
def test_first_word_has_the_same_token_as_within_a_text(tokenizer: Tokenizer) -> None:
    be, eos = tokenizer.encode("be"), tokenizer.eos_id or 0
    assert be == tokenizer.encode("not to be")[-len(be) :]
    ids = [eos, *be, eos, *be]
    assert tokenizer.decode(ids) == stream_text(tokenizer, ids) == "be be", "only the leading space is removed"
    assert tokenizer.count_bytes(np.array(ids)) == 5
    assert tokenizer.count_bytes(np.array([eos])) == 0


def test_first_word_without_prefix_space_has_another_token() -> None:
    assert TOKENIZERS["words"].encode("be")[0] != TOKENIZERS["words"].encode("not to be")[-1]


@given(text=TEXTS)
def test_unigram_pieces_show_unknown_text(text: str) -> None:
    build_unigram = TOKENIZERS["unigram"]
    ids = build_unigram.encode(text)
    assert (build_unigram.decode(ids) == text) == (build_unigram.unk_id not in ids) == (set(text) <= set(ALPHABET))
    assert stream_text(build_unigram, ids) == build_unigram.decode(ids)


@pytest.mark.slow
def test_unigram_training_is_deterministic() -> None:
    text = [f"{word} the {word}ing of {word}ed things" for word in ("walk", "talk", "play", "bake", "count")] * 3
    spec = Unigram(vocab_size=60)
    tokenizer = Tokenizer.train(spec, text)
    assert {Tokenizer.train(spec, text).hash for _ in range(5)} == {tokenizer.hash}
    assert tokenizer.vocab_size <= 60
    assert max(map(len, tokenizer.tokens(range(tokenizer.vocab_size)))) > 3, "pieces longer than a character"
    assert len(tokenizer.encode(text[0])) < len(text[0]) / 1.5
    command = (
        "import sys; from tercet.tokens import *; print(Tokenizer.train(Unigram(vocab_size=60), sys.argv[1:]).hash)"
    )
    result = subprocess.run([sys.executable, "-c", command, *text], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == tokenizer.hash, "independent of the hash order of a process"


def test_byte_pair_seen_once_is_not_merged() -> None:
    assert Tokenizer.train(BPE(vocab_size=300), ["one two"]).vocab_size == 1 + 256
    assert Tokenizer.train(BPE(vocab_size=300), ["one one"]).vocab_size > 1 + 256


def test_more_characters_than_the_vocabulary_are_rejected() -> None:
    with pytest.raises(
        UserError, match=r"too many different characters for vocab_size=9; increase tokenizer\.vocab_size"
    ):
        Tokenizer.train(Unigram(vocab_size=9), ["abcdefghij klm"])


def test_text_is_normalized() -> None:
    for text in ("a\xa0b", "a\u2028b", "a\rb", "👩‍👩‍👧 🙂", "\ufeffa", "x" * 3000):
        for tokenizer in LOSSLESS:
            assert tokenizer.decode(tokenizer.encode(text)) == text


@given(ids=st.lists(st.integers(0, 400), max_size=30))
def test_stream_equals_decode_for_any_ids(ids: list[int]) -> None:
    for tokenizer in TOKENIZERS.values():
        assert stream_text(tokenizer, ids) == tokenizer.decode(ids)


def test_stream_waits_for_a_whole_character() -> None:
    ids, stream = TOKENIZERS["bytes"].encode("€"), TOKENIZERS["bytes"].stream()
    assert len(ids) == 3
    assert [stream.push(token) for token in ids] == ["", "", "€"]
    stream.push(ids[0])
    assert stream.flush() == "\ufffd"


@given(text=TEXTS)
def test_library_gives_the_same_ids_and_text(text: str) -> None:
    for tokenizer in [*LOSSLESS, *AFTER_A_SPACE, TOKENIZERS["words"], TOKENIZERS["unigram"]]:
        library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
        library.encode_special_tokens = True
        assert tokenizer.encode(text) == library.encode(text).ids
        if tokenizer.unk_id is None:  # the library omits <unk>, which we show
            assert tokenizer.decode(tokenizer.encode(text)) == library.decode(tokenizer.encode(text))


@given(ids=st.lists(st.integers(0, 299), max_size=30))
def test_invalid_bytes_are_replaced_as_by_the_library(ids: list[int]) -> None:
    for name in ("bpe", "bpe after a space"):
        library = tokenizers.Tokenizer.from_str(TOKENIZERS[name].to_json())
        assert TOKENIZERS[name].decode(ids) == library.decode(ids)


def test_tokenizer_survives_json(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    reloaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (reloaded.kind, reloaded.hash, reloaded.vocab_size) == (tokenizer.kind, tokenizer.hash, tokenizer.vocab_size)
    assert (reloaded.pad_id, reloaded.eos_id, reloaded.unk_id) == (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id)
    assert (reloaded.bos_id, reloaded.prefix_space) == (tokenizer.bos_id, tokenizer.prefix_space)
    assert reloaded.encode(TEXT) == tokenizer.encode(TEXT)
    assert Tokenizer.train(TokenizerFile(path=str(tmp_path / "tokenizer.json")), []).hash == tokenizer.hash
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("To be").ids == reloaded.encode(
        "To be"
    )


def test_kind_is_that_of_the_spec() -> None:
    assert [tokenizer.kind for tokenizer in TOKENIZERS.values()] == [
        *("characters", "characters", "words", "bpe", "unigram", "words", "bpe", "unigram")
    ]


def test_special_tokens_come_first_and_never_from_text(tokenizer: Tokenizer) -> None:
    special = [token for token in (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) if token is not None]
    assert special == sorted(tokenizer.special_ids) == list(range(len(special)))
    ids = tokenizer.encode("<eos><pad> <eos>\n<eos>")
    assert not tokenizer.special_ids & set(ids)
    if tokenizer.unk_id is None:
        assert tokenizer.decode([*ids, tokenizer.eos_id or 0]) == "<eos><pad> <eos>\n<eos>"
    assert tokenizer.decode([tokenizer.eos_id or 0], skip_special=False) == "<eos>"


def test_unrequested_bos_changes_no_ids() -> None:
    specs = [Characters(), Words(), BPE(vocab_size=300), Unigram(), Words(prefix_space=True)]
    for spec in specs:
        plain, with_bos = Tokenizer.train(spec, [TEXT]), Tokenizer.train(replace(spec, pad=True, bos=True), [TEXT])
        assert (plain.eos_id, plain.bos_id, plain.pad_id) == (0, None, None)
        assert (with_bos.pad_id, with_bos.bos_id, with_bos.eos_id) == (0, 1, 2)
        if not isinstance(spec, BPE):
            assert with_bos.vocab_size == plain.vocab_size + 2
            assert with_bos.encode("To be") == [token + 2 for token in plain.encode("To be")]


def test_frequent_special_name_is_not_merged() -> None:
    learnt = Tokenizer.train(BPE(vocab_size=400), ["<eos>" * 50 + " <eos>" * 50])
    assert learnt.eos_id not in learnt.encode("<eos> <eos><eos>")


def test_without_special_tokens_the_vocabulary_is_the_alphabet() -> None:
    plain = Tokenizer.train(Characters(eos=False), ["banana"])
    assert (plain.vocab_size, plain.eos_id, plain.pad_id, plain.special_ids) == (3, None, None, frozenset())
    assert plain.encode("nab") == [2, 0, 1]


def test_alphabet_keeps_its_order() -> None:
    assert Tokenizer.train(Characters(eos=False, alphabet="cab"), []).encode("abc") == [1, 2, 0]


# Older `words` tokenizers split at hyphens; their files must keep working as before.
CUT_AT_HYPHENS = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A Middle-Eastern man's t-shirt", ["A", " Middle-Eastern", " man's", " t-shirt"]),
        ("we don’t, 'tis 5th-rate", ["we", " don’t", ",", " '", "tis", " 5th-rate"]),
        ("mother-in-law's l'été 20-year-old", ["mother-in-law's", " l'été", " 20-year-old"]),
        ("a--b -c d- e-'f g\u0301-h", ["a", "--", "b", " -", "c", " d", "-", " e", "-'", "f", " g\u0301-h"]),
        ("3.5 a_b u@v.org", ["3", ".", "5", " a", "_", "b", " u", "@", "v", ".", "org"]),
    ],
)
def test_words_keep_hyphens_and_apostrophes(text: str, words: list[str]) -> None:
    tokenizer = Tokenizer.train(Words(), [text])
    ids = tokenizer.encode(text)
    assert tokenizer.tokens(ids) == words
    assert tokenizer.word_starts(np.array(ids)).all(), "every token is a word"
    assert tokenizer.decode(ids) == stream_text(tokenizer, ids) == text


def test_older_files_still_split_at_hyphens() -> None:
    text = "A Middle-Eastern man's 5th t-shirt"
    structure = json.loads(Tokenizer.train(Words(prefix_space=True), [text.replace("-", " - ")]).to_json())
    structure["pre_tokenizer"]["pattern"] = {"Regex": CUT_AT_HYPHENS}
    names = [" A", " Middle", "-", "Eastern", " man", "'", "s", " ", " 5", "th", " t", "shirt"]
    structure["model"]["vocab"] = {name: number for number, name in enumerate(["<eos>", "<unk>", *names])}
    old = Tokenizer.from_json(json.dumps(structure))
    ids = old.encode(text)
    assert old.kind == "words"
    assert old.unk_id not in ids
    assert len(ids) == 12
    assert old.decode(ids) == stream_text(old, ids) == text
    assert old.word_starts(np.array(ids)).all(), "words start where that file splits"


def test_unknown_words_are_visible() -> None:
    words = Tokenizer.train(Words(vocab_size=6), ["the cat and the dog and the end"])
    assert words.vocab_size == 6
    assert words.encode(" the zebra")[1] == words.unk_id
    assert words.decode(words.encode(" the zebra")) == " the<unk>"


def test_unknown_characters_are_reported_with_a_remedy() -> None:
    tokenizer = Tokenizer.train(Characters(), ["abc"])
    with pytest.raises(UserError, match=r"'z' \(U\+007A\), '🙂' \(U\+1F642\); set byte_fallback: true, or"):
        tokenizer.encode("cab🙂z")
    with pytest.raises(UserError, match="and 3 more"):
        tokenizer.encode("12345678")


@pytest.mark.parametrize("surrogate", ["\ud800", "ab\udfff"])
def test_unpaired_surrogate_is_rejected(tokenizer: Tokenizer, surrogate: str) -> None:
    with pytest.raises(UserError, match=r"half a surrogate pair \(U\+D"):
        tokenizer.encode(surrogate)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_training_rejects_unpaired_surrogates(spec: TrainableTokenizerSpec) -> None:
    if not isinstance(spec, Characters):
        with pytest.raises(UserError, match="surrogate"):
            Tokenizer.train(spec, ["ab\ud800"])


def test_empty_text_has_no_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == stream_text(tokenizer, []) == ""


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    assert (
        tokenizer.decode([tokenizer.vocab_size, 10**9, -1]) == stream_text(tokenizer, [tokenizer.vocab_size, -1]) == ""
    )


def test_batch_equals_single_texts(tokenizer: Tokenizer) -> None:
    batch = tokenizer.encode_batch(["To be", "", TEXT])
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text) for text in ("To be", "", TEXT)]
    assert all(ids.dtype == np.uint32 for ids in batch)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "bpe", "vocab_size": 100}, "bpe needs vocab_size >= 257"),
        ({"kind": "bpe", "vocab_size": 258, "pad": True, "bos": True}, "vocab_size >= 259"),
        ({"kind": "words", "vocab_size": 1}, "vocab_size >= 4"),
        ({"kind": "words", "vocab_size": 4, "bos": True}, "vocab_size >= 5"),
        ({"kind": "unigram", "vocab_size": 3}, "unigram needs vocab_size >= 4"),
        ({"kind": "characters", "alphabet": "aba"}, "'a' more than once"),
        ({"kind": "characters", "alphabet": ""}, "alphabet is empty"),
    ],
)
def test_impossible_settings_are_rejected_with_a_reason(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(TextSpec, {"source": "animals", "tokenizer": settings})


def test_invalid_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No such file.*pass the path of a tokenizer\.json"):
        Tokenizer.load(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        Tokenizer.load(tmp_path)
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(UserError, match=r"is not a tokenizer\.json"):
        Tokenizer.load(tmp_path / "other.json")


def test_foreign_tokenizer_streams_as_it_decodes() -> None:
    model = tokenizers.models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "a": 3, "!": 4}, unk_token="[UNK]")
    library = tokenizers.Tokenizer(model)
    library.normalizer = tokenizers.normalizers.Lowercase()
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.decoder = tokenizers.decoders.WordPiece()
    foreign = Tokenizer.from_json(library.to_str())
    ids = foreign.encode("Playing a play!")
    assert (foreign.kind, foreign.unk_id, ids) == ("file", 0, [1, 2, 3, 1, 4])
    assert stream_text(foreign, ids) == foreign.decode(ids) == "playing a play!"
    assert foreign.tokens([1, 2]) == ["play", "##ing"]


SPACES = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁": 257, "▁the": 258, "\ufffd": 259}


@given(ids=st.lists(st.integers(0, 259) | st.sampled_from([0xE3, 0x83, 0xAD, 257, 258, 259]), max_size=9))
def test_foreign_stream_waits_for_the_end_of_a_run_of_bytes(ids: list[int]) -> None:
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=SPACES, merges=[], byte_fallback=True))
    steps = tokenizers.decoders
    library.decoder = steps.Sequence(
        [steps.Replace("▁", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    foreign = Tokenizer(library)
    assert foreign.kind == "file"
    assert stream_text(foreign, ids) == foreign.decode(ids)


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


@given(ids=st.lists(st.integers(0, 20), max_size=12), max_len=st.integers(2, 9))
def test_frame_keeps_its_ends_for_any_length(ids: list[int], max_len: int) -> None:
    plainly = Tokenizer.train(Characters(bos=True), ["abcdefgh"])
    assert plainly.bos_id is not None
    for tokenizer in (plainly, plainly.with_opening([plainly.bos_id])):
        row = tokenizer.frame(ids, max_len=max_len)
        assert len(row) == min(max_len, len(tokenizer.opening) + len(ids) + 1)
        assert row[-1] == tokenizer.eos_id
        assert tuple(row[: len(tokenizer.opening)]) == tokenizer.opening
        body = row[len(tokenizer.opening) : -1]
        assert body == ids[: len(body)]

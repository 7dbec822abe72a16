"""Tokenizers for fields, k-mers and ids: each token is a word, and no text can produce a special token."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.tokens import Fields, KMers, PlainIds, Tokenizer, TrainableTokenizerSpec
from tercet.tokens import sequences as module
from tercet.tokens.sentencepiece import HIDDEN_PREFIX

GAMES = ["e4 e5, Nf3\tNc6\ne4 e5  d4,d5 ", "e4 c5 O-O <eos> 1/2-1/2"]
DNA = "".join(random.Random(1).choices("ACGT", k=3000)) + "NNAC"
SPECIAL = {"pad": True, "bos": True, "mask": True}
FIELDS = Tokenizer.train(Fields(**SPECIAL), GAMES)
MERS = Tokenizer.train(KMers(k=3, **SPECIAL), [DNA])
IDS = Tokenizer.train(PlainIds(vocab_size=20, **SPECIAL), [])
ALL_TOKENIZERS = pytest.mark.parametrize("tokenizer", [FIELDS, MERS, IDS], ids=lambda tokenizer: tokenizer.kind)


@ALL_TOKENIZERS
def test_tokenizer_survives_a_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    reloaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (reloaded.kind, reloaded.hash, reloaded.id_limit) == (tokenizer.kind, tokenizer.hash, tokenizer.id_limit)
    roles = (reloaded.pad_id, reloaded.bos_id, reloaded.eos_id, reloaded.mask_id)
    assert roles == (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id)
    assert None not in roles
    assert set(roles) == tokenizer.special_ids


@given(
    st.lists(st.sampled_from(["e4", "O-O", "Nc6", "d5", "1/2-1/2"]), max_size=6), st.sampled_from([" ", ",", "\t, \n"])
)
def test_fields_are_decoded_with_a_space_between(fields: list[str], separator: str) -> None:
    assert FIELDS.decode(FIELDS.encode(separator.join(fields))) == " ".join(fields)


def test_fields_are_ordered_by_their_counts() -> None:
    assert FIELDS.tokens(range(5, 9)) == [" e4", " e5", " 1/2-1/2", " <eos>"]
    assert FIELDS.encode("e4 Qh5") == [FIELDS.id_of("e4"), FIELDS.unk_id]
    small = Tokenizer.train(Fields(min_count=2, vocab_size=3), GAMES)
    assert small.tokens(range(small.vocab_size)) == [" <eos>", " <unk>", " e4"]


@given(st.text("ACGTN", max_size=20))
def test_kmers_are_decoded_exactly(text: str) -> None:
    ids = MERS.encode(text)
    assert MERS.decode(ids) == text
    assert [len(piece) for piece in MERS.tokens(MERS.encode(DNA[:9]))] == [3, 3, 3]


def test_text_without_a_known_kmer_is_characters() -> None:
    assert MERS.tokens(MERS.encode("ACGNTGA")) == ["ACG", "N", "T", "G", "A"]
    assert MERS.encode("xyz") == [MERS.unk_id]
    assert {name for name in MERS.tokens(range(MERS.vocab_size)) if len(name) == 3} >= {"ACG", "TTT", "GAT"}
    assert Tokenizer.train(KMers(k=2), ["ACACAC"]).id_of("CA") is None  # CA occurs only across two k-mers


@given(st.lists(st.integers(0, 19), max_size=9))
def test_ids_equal_the_numbers(ids: list[int]) -> None:
    text = " ".join(map(str, ids))
    assert IDS.encode(text) == ids
    assert IDS.decode(ids) == text
    assert IDS.count_bytes(np.array(ids, np.int64)) == len(text)


@given(st.text(st.one_of(st.sampled_from("0123456789 \n\t"), st.characters(codec="utf-8")), max_size=8))
def test_any_other_text_is_rejected_in_one_line(text: str) -> None:
    try:
        ids = IDS.encode(text)
    except UserError as error:
        ids, message = None, str(error)
    else:
        message = ""
    assert ids is None or ids == [int(number) for number in text.split()]
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [("5 20", "the id 20 is outside the vocabulary, whose last id is 19"), ("1_0", "'_' is not an id"),
     ("-1", "'-' is not an id"), ("9" * 5000, "is outside"), ("1.5", "is not an id"), ("٣", "is not an id")],
)  # fmt: skip
def test_invalid_ids_are_rejected(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        IDS.encode(text)


def test_number_in_the_data_may_end_documents() -> None:
    tokenizer = Tokenizer.train(PlainIds(eos_id=9, mask=True), ["1 2 7"])
    assert (tokenizer.eos_id, tokenizer.id_limit, tokenizer.mask_id) == (9, 10, 10)
    assert tokenizer.encode("1 9 2") == [1, 9, 2]
    assert tokenizer.decode([1, 9, 2]) == "1 2"


@ALL_TOKENIZERS
def test_text_never_produces_a_special_token(tokenizer: Tokenizer) -> None:
    for name in ("<eos>", "<mask>", "<pad>", f"{HIDDEN_PREFIX}<eos>", f"e4 {HIDDEN_PREFIX}<mask>"):
        try:
            assert not set(tokenizer.encode(name)) & tokenizer.special_ids
        except UserError:
            assert tokenizer.kind == "ids"
    if tokenizer.kind == "kmers":
        five = Tokenizer.train(KMers(k=5), ["<eos>" * 9])
        assert five.eos_id not in five.encode("<eos>")
        assert five.decode(five.encode("<eos>")) == "<eos>"


@ALL_TOKENIZERS
def test_masks_and_words(tokenizer: Tokenizer) -> None:
    text = {"fields": "e4 [MASK] d4", "kmers": "ACG[MASK]ACG", "ids": "5 [MASK] 7"}[tokenizer.kind]
    ids = tokenizer.encode_masked(text)
    assert ids.tolist()[1] == tokenizer.mask_id
    assert len(ids) == 3
    assert tokenizer.word_starts(ids[None]).all()


@ALL_TOKENIZERS
@given(ids=st.lists(st.integers(-1, 30), max_size=9))
def test_stream_equals_the_decoded_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    stream = tokenizer.stream()
    assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids)
    prompt = tokenizer.encode({"fields": "e4", "kmers": "ACG", "ids": "5"}[tokenizer.kind])
    continued, text = tokenizer.stream(after=prompt), tokenizer.decode(ids)
    space = " " if text and tokenizer.kind != "kmers" else ""
    assert "".join(map(continued.push, ids)) + continued.flush() == space + text


@pytest.mark.parametrize("spec", [Fields(), KMers(k=4)], ids=lambda spec: spec.kind)
def test_rare_items_are_dropped_while_counting(spec: TrainableTokenizerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTS", 100)
    texts = [f"AAAA{n:04d}" if spec.kind == "kmers" else f"often {n}" for n in range(1000)]
    tokenizer = Tokenizer.train(spec, texts)
    assert tokenizer.vocab_size < 150
    assert tokenizer.unk_id not in tokenizer.encode("AAAA" if spec.kind == "kmers" else "often")


def test_more_characters_than_the_vocabulary_are_rejected() -> None:
    with pytest.raises(UserError, match="too many different characters for vocab_size=20: 26"):
        Tokenizer.train(KMers(vocab_size=20), ["abcdefghijklmnopqrstuvwxyz"])


def test_overlong_field_is_unknown(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(Fields(), ["a " + "b" * 5000])
    tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode("b" * 5000) == [tokenizer.unk_id]

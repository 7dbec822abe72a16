"""Encoded pairs equal those of the files, in the right part, and no vocabulary is trained on validation text."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError, parse, to_plain
from tercet.data import (
    HeldOutPairs,
    Packed,
    Padded,
    PairFiles,
    Pairs,
    PairsSpec,
    RandomSplit,
    TextSpec,
    cache,
    prepare,
    prepare_pairs,
    read_pairs,
)
from tercet.data.encode import learn_tokenizer
from tercet.tokens import BPE, GPT2, Characters, Tokenizer, TokenizerFile, Unigram, WordPiece, Words

SMALL = BPE(vocab_size=300)


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(folder: Path, pairs: list[tuple[str, str]], name: str = "a", **settings: Any) -> PairsSpec:
    for side, end in enumerate(("de", "en")):
        (folder / f"{name}.{end}").write_bytes("".join(pair[side] + "\n" for pair in pairs).encode())
    options = {"tokenizer": SMALL, **settings}
    return PairsSpec(source=str(folder / f"{name}.de"), target=str(folder / f"{name}.en"), **options)


SENTENCES = [(f"Satz {number} mit\xa0{number % 7} ü", f"sentence {number} 🙂") for number in range(53)]


def texts(pairs: Pairs, source: Tokenizer, target: Tokenizer) -> list[tuple[str, str]]:
    sentences = list[tuple[str, str]]()
    for number in range(len(pairs)):
        s = pairs.source[pairs.source_starts[number] : pairs.source_starts[number + 1]]
        t = pairs.target[pairs.target_starts[number] : pairs.target_starts[number + 1]]
        assert (s[-1], t[-1]) == (source.eos_id, target.eos_id)
        assert not {source.eos_id, source.bos_id, source.pad_id} & set(s[:-1].tolist())
        sentences.append((source.decode(s), target.decode(t)))
    return sentences


@pytest.mark.parametrize(
    "tokenizer", [SMALL, BPE(vocab_size=300, prefix_space=True), Characters(), Words(), Unigram(prefix_space=True)]
)
def test_ids_are_those_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    monkeypatch.setattr(cache, "CHUNK_CHARACTERS", 100)  # many batches
    sentences = SENTENCES if tokenizer in (SMALL, Words()) else [("ab ba", "b a"), *[("a b", "ab")] * 30]
    if isinstance(tokenizer, Words):
        sentences = [("a", " b"), *[("a b", "b a")] * 30]
    spec = files(tmp_path, [("", "no source"), *sentences, (" ", "\t")], tokenizer=tokenizer)
    corpus = prepare_pairs(spec)
    assert corpus.tokenizer is corpus.source_tokenizer
    assert (corpus.tokenizer.pad_id, corpus.tokenizer.bos_id, corpus.tokenizer.eos_id) == (0, 1, 2)
    whole = [(source.strip(), target.strip()) for source, target in sentences]
    train = texts(corpus.train, corpus.source_tokenizer, corpus.tokenizer)
    validation = texts(corpus.validation, corpus.source_tokenizer, corpus.tokenizer)
    assert sorted(train + validation) == sorted(whole)
    assert [pair for pair in whole if pair in train] == train, "in the order of the lines"
    assert tuple(validation) == corpus.validation_texts
    assert (train, validation) == (read_pairs(spec, "train"), read_pairs(spec, "validation"))
    assert (corpus.skipped, corpus.name) == (2, spec.source)
    assert corpus.train.source_lengths.sum() == len(corpus.train.source)
    assert corpus.train.target_lengths.tolist() == np.diff(corpus.train.target_starts).tolist()
    assert isinstance(corpus.train.source, np.memmap)
    assert corpus.train.source.dtype == np.uint16
    assert corpus.train.source_starts.dtype == np.int64


def test_two_vocabularies_are_trained_on_their_own_side(tmp_path: Path) -> None:
    corpus = prepare_pairs(files(tmp_path, SENTENCES, tokenizer=Words(), source_tokenizer=Characters()))
    assert (corpus.source_tokenizer.kind, corpus.tokenizer.kind) == ("characters", "words")
    assert "🙂" not in corpus.source_tokenizer.tokens(range(corpus.source_tokenizer.vocab_size))
    assert "Satz" not in corpus.tokenizer.tokens(range(corpus.tokenizer.vocab_size))
    for tokenizer in (corpus.source_tokenizer, corpus.tokenizer):
        assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    decoded = texts(corpus.validation, corpus.source_tokenizer, corpus.tokenizer)
    assert [source for source, _ in decoded] == [source for source, _ in corpus.validation_texts]


@given(
    pairs=st.lists(st.tuples(st.sampled_from("abcdefghijklmn"), st.sampled_from("uvwxyz")), min_size=2, max_size=80),
    count=st.integers(1, 9),
    seed=st.randoms(),
)
def test_equal_sources_are_in_one_part_in_any_order(
    pairs: list[tuple[str, str]], count: int, seed: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    spec = files(folder, pairs, validation=RandomSplit(count=count))
    if len({source for source, _ in pairs}) == 1:
        with pytest.raises(UserError, match=r"cannot be divided; set data\.validation"):
            read_pairs(spec, "train")
        return
    train, validation = read_pairs(spec, "train"), read_pairs(spec, "validation")
    assert sorted(train + validation) == sorted(pairs)
    assert train
    assert validation
    assert not {source for source, _ in train} & {source for source, _ in validation}
    fewest_repeats = min(sum(repeat == source for repeat, _ in pairs) for source, _ in pairs)
    assert len(validation) <= max(min(count, len(pairs) // 10), fewest_repeats)
    seed.shuffle(pairs)
    files(folder, pairs)
    assert sorted(read_pairs(spec, "validation")) == sorted(validation)


def test_validation_part_has_about_the_requested_size(tmp_path: Path) -> None:
    sentences = [(f"Satz {number}", f"sentence {number}") for number in range(4000)]
    assert len(read_pairs(files(tmp_path, sentences), "validation")) == 400
    validation = read_pairs(files(tmp_path, sentences, validation=RandomSplit(count=37)), "validation")
    assert len(validation) == 37
    assert validation not in (sentences[:37], sentences[-37:])


@pytest.mark.parametrize("validation", ["drawn", "held_out"])
def test_vocabularies_are_trained_on_training_text_only(tmp_path: Path, validation: str) -> None:
    spec = files(tmp_path, SENTENCES, tokenizer=Words())
    if validation == "held_out":
        validation_pairs = [("Quastenflosser schwimmen", "coelacanths swim")] * 9
        valid = files(tmp_path, validation_pairs, "b")
        spec = files(
            tmp_path, SENTENCES, tokenizer=Words(), validation=HeldOutPairs(source=valid.source, target=valid.target)
        )
    else:  # if the part is drawn, the words of the drawn pairs
        validation_pairs = read_pairs(spec, "validation")
    corpus = prepare_pairs(spec)
    assert list(corpus.validation_texts) == validation_pairs
    validation_words = {
        word for pair in validation_pairs for text in pair for word in text.split() if text.split()[0] != word
    }
    validation_words -= {word for pair in read_pairs(spec, "train") for text in pair for word in text.split()}
    assert validation_words
    vocabulary = {token.strip() for token in corpus.tokenizer.tokens(range(corpus.tokenizer.vocab_size))}
    assert not validation_words & vocabulary
    assert corpus.tokenizer.unk_id in corpus.validation.source
    leaky_tokenizer = Tokenizer.train(
        Words(), [text for pair in validation_pairs for text in pair]
    )  # a leak would be detected
    assert validation_words & {token.strip() for token in leaky_tokenizer.tokens(range(leaky_tokenizer.vocab_size))}


def test_files_that_do_not_match_leave_nothing_behind(tmp_path: Path, cache_folder: Path) -> None:
    spec = files(tmp_path, SENTENCES)
    Path(spec.target or "").write_text("one\n")
    for validation in (None, HeldOutPairs(source=spec.source, target=spec.source)):
        with pytest.raises(UserError, match=r"a\.de has 53 lines and .*a\.en 1;"):
            prepare_pairs(PairsSpec(source=spec.source, target=spec.target, validation=validation))
    assert not cache_folder.exists()
    matching = files(tmp_path, SENTENCES, "b")
    with pytest.raises(UserError, match=r"a\.de has 53 lines and .*a\.en 1;"):
        prepare_pairs(files(tmp_path, SENTENCES, "b", validation=HeldOutPairs(source=spec.source, target=spec.target)))
    assert not cache_folder.exists()
    assert len(prepare_pairs(matching).train) == 48


def test_second_preparation_uses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    spec = files(tmp_path, SENTENCES)
    first = prepare_pairs(spec)
    with monkeypatch.context() as patch:
        patch.setattr(PairFiles, "examples", None)
        second = prepare_pairs(spec)
    assert (second.hash, second.tokenizer.hash, second.skipped) == (first.hash, first.tokenizer.hash, 0)
    assert second.validation_texts == first.validation_texts
    np.testing.assert_array_equal(second.train.source, first.train.source)
    assert not list(cache_folder.rglob(".*")), "temporary files left behind"
    expected = first.train.target.tolist()
    next(cache_folder.rglob("train_target.bin")).write_bytes(b"xx")
    assert prepare_pairs(spec).train.target.tolist() == expected, "the damage is repaired"


def test_every_change_has_separate_ids(tmp_path: Path, cache_folder: Path) -> None:
    spec = files(tmp_path, SENTENCES)
    hashes = {prepare_pairs(spec).hash}
    hashes.add(prepare_pairs(files(tmp_path, SENTENCES, validation=RandomSplit(count=2))).hash)
    hashes.add(prepare_pairs(files(tmp_path, [*SENTENCES, ("neu", "new")])).hash)
    swapped = PairsSpec(source=spec.target or "", target=spec.source, tokenizer=SMALL)
    hashes.add(prepare_pairs(swapped).hash)
    assert len(hashes) == len(list((cache_folder / "pairs").iterdir())) == 4
    assert prepare_pairs(files(tmp_path, SENTENCES, tokenizer=Characters())).hash in hashes
    assert len(list((cache_folder / "pairs").iterdir())) == 5


def test_one_file_of_pairs_by_language(tmp_path: Path) -> None:
    rows = [json.dumps({"de": source, "en": target}) for source, target in SENTENCES]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    path = str(tmp_path / "a.jsonl")
    de_en = PairsSpec(source=path, source_language="de", target_language="en", tokenizer=SMALL)
    en_de = PairsSpec(source=path, source_language="en", target_language="de", tokenizer=SMALL)
    assert sorted([*read_pairs(de_en, "train"), *read_pairs(de_en, "validation")]) == sorted(SENTENCES)
    assert read_pairs(en_de, "validation") != [(b, a) for a, b in read_pairs(de_en, "validation")], (
        "drawn by the source"
    )
    assert prepare_pairs(de_en).hash != prepare_pairs(en_de).hash


def test_given_tokenizers_are_used(tmp_path: Path) -> None:
    spec = files(tmp_path, SENTENCES)
    tokenizer = Tokenizer.train(BPE(vocab_size=259, pad=True, bos=True), [])
    corpus = prepare_pairs(spec, tokenizer=tokenizer)
    assert corpus.tokenizer is corpus.source_tokenizer is tokenizer
    corpus = prepare_pairs(spec, source_tokenizer=tokenizer)
    assert corpus.source_tokenizer is tokenizer
    assert corpus.tokenizer.vocab_size > 259
    tokenizer.save(tmp_path / "tokenizer.json")
    assert prepare_pairs(files(tmp_path, SENTENCES, tokenizer=TokenizerFile(path=str(tmp_path / "tokenizer.json"))))


def test_word_pieces_have_the_special_tokens_already(tmp_path: Path) -> None:
    corpus = prepare_pairs(files(tmp_path, SENTENCES, tokenizer=WordPiece(vocab_size=200)))
    ids = corpus.train.target[: corpus.train.target_starts[1]]
    assert corpus.tokenizer.decode(ids) == "sentence 0 🙂"
    assert ids[-1] == corpus.tokenizer.eos_id


def test_tokenizers_without_the_tokens_that_pairs_need(tmp_path: Path) -> None:
    Tokenizer.train(Words(), ["a b"]).save(tmp_path / "tokenizer.json")
    lacking = TokenizerFile(path=str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"data\.tokenizer \(words\) has no pad and no bos token, .*use the kind"):
        prepare_pairs(files(tmp_path, SENTENCES, tokenizer=lacking))
    with pytest.raises(UserError, match=r"data\.source_tokenizer \(words\) has no pad"):
        prepare_pairs(files(tmp_path, SENTENCES, source_tokenizer=lacking))
    with pytest.raises(ValueError, match="gpt2 has no pad and no bos token, which pairs require; use the kind bpe"):
        files(tmp_path, SENTENCES, source_tokenizer=GPT2())


def test_running_text_has_no_space_put_before_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text " * 9)
    with pytest.raises(UserError, match="prefix_space is for sentence pairs, not for running text"):
        prepare(TextSpec(source=str(tmp_path / "a.txt"), tokenizer=BPE(vocab_size=260, prefix_space=True)))


@pytest.mark.exhaustive
def test_large_vocabularies_have_wider_ids(tmp_path: Path) -> None:
    alphabet = "".join(map(chr, range(0x10000, 0x10000 + (1 << 16))))
    last = alphabet[-1]
    spec = files(tmp_path, [(last, last), (last * 2, last)], tokenizer=Characters(alphabet=alphabet))
    assert prepare_pairs(spec).train.source.dtype == np.uint32


def test_vocabulary_is_trained_on_limited_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(learn_tokenizer, "TRAINING_BYTES", 60)
    corpus = prepare_pairs(files(tmp_path, SENTENCES, tokenizer=Words()))
    assert corpus.tokenizer.vocab_size < 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoding": "utf-9"}, "unknown encoding 'utf-9'"),
        ({"validation": {"kind": "drawn", "count": 0}}, "validation.count=0 must be at least 1"),
        ({"validation": {"kind": "held_out"}}, "the key 'source' is missing"),
        ({"validation": "tail"}, "unknown kind 'tail'"),
        ({"source_language": "de", "target_language": "de"}, "are both 'de'"),
        ({"tokenizer": "gpt2"}, "gpt2 has no pad"),
        ({"targt": "b"}, "unknown key 'targt'; did you mean 'target'"),
    ],
)
def test_impossible_settings_are_rejected_with_reason(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(PairsSpec, {"source": "numbers", **settings})


def test_settings_round_trip_through_plain_data() -> None:
    spec = PairsSpec(source="a.de", target="a.en", validation=HeldOutPairs(source="b.tsv"), source_tokenizer=Unigram())
    assert parse(PairsSpec, to_plain(spec)) == spec
    assert PairsSpec(source="numbers").tokenizer == BPE(vocab_size=8000)


def test_whether_documents_are_apart() -> None:
    rows = {Packed(): False, Packed(document_mask=True): True, Padded(): True}
    assert {layout: TextSpec(source="animals", rows=layout).has_document_mask for layout in rows} == rows


@pytest.mark.parametrize("joint", [True, False], ids=["one vocabulary", "two"])
def test_sources_may_begin_with_bos_and_targets_do_not(tmp_path: Path, joint: bool) -> None:
    settings = {} if joint else {"source_tokenizer": Words()}
    without_bos = prepare_pairs(files(tmp_path, SENTENCES, **settings))
    with_bos = prepare_pairs(files(tmp_path, SENTENCES, source_bos=True, **settings))
    bos = with_bos.source_tokenizer.bos_id
    assert bos is not None
    assert with_bos.source_tokenizer.opening == (bos,)
    assert without_bos.source_tokenizer.opening == ()
    for number in range(len(without_bos.train)):
        row, without = (
            corpus.train.source[corpus.train.source_starts[number] : corpus.train.source_starts[number + 1]].tolist()
            for corpus in (with_bos, without_bos)
        )
        assert row == [bos, *without]
        text = with_bos.source_tokenizer.decode(row)
        assert with_bos.source_tokenizer.frame(with_bos.source_tokenizer.encode(text), max_len=128) == row
    assert with_bos.train.target.tolist() == without_bos.train.target.tolist()
    assert (with_bos.source_tokenizer is with_bos.tokenizer) == joint  # a joint vocabulary stays joint

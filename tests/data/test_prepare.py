"""The ids on disk are those of the text, in the right part, and never those of another text."""

import errno
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.config import UserError, parse, to_plain
from tercet.data import Documents, HeldOut, Tail, TextSpec, prepare
from tercet.data.corpora import text_corpus
from tercet.data.encode import learn_tokenizer
from tercet.data.encode.document_ids import EncodedSource, encode_source
from tercet.data.sources import documents
from tercet.tokens import BPE, Characters, Tokenizer, WordPiece, Words, trainers

TEXT = "One line, naïve as it is.\nAnd another 🙂 line;\n\nthen\r\nthe end. " * 9


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {n} é" * (n % 3 + 1)}) + "\n" for n in range(40)))
    return path


def text_file(tmp_path: Path, text: str = TEXT) -> str:
    (tmp_path / "a.txt").write_bytes(text.encode())
    return str(tmp_path / "a.txt")


@pytest.mark.parametrize("tokenizer", [Characters(eos=False), Words(), BPE(vocab_size=290)], ids=lambda spec: spec.kind)
def test_both_parts_together_are_the_text(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 50)  # many pieces
    corpus = prepare(TextSpec(source=text_file(tmp_path), tokenizer=tokenizer))
    ids = np.concatenate([corpus.train, corpus.validation])
    end = [] if corpus.tokenizer.eos_id is None else [corpus.tokenizer.eos_id]
    assert ids.tolist() == corpus.tokenizer.encode(TEXT) + end
    assert corpus.tokenizer.decode(ids) == TEXT
    assert len(corpus.train) == int(len(ids) * 0.9)
    assert corpus.train_bytes + corpus.validation_bytes == len(TEXT.encode())
    assert corpus.validation_bytes == corpus.tokenizer.count_bytes(corpus.validation)
    assert isinstance(corpus.train, np.memmap)
    assert corpus.train.dtype == np.uint16
    assert corpus.train_documents.tolist() == corpus.validation_documents.tolist() == [0]


@pytest.mark.slow
def test_large_vocabularies_have_wider_ids(tmp_path: Path) -> None:
    for size, dtype in ((1 << 16, np.uint16), (1 + (1 << 16), np.uint32)):
        alphabet = "".join(map(chr, range(0x10000, 0x10000 + size)))
        text = alphabet[-1] * 20
        spec = TextSpec(source=text_file(tmp_path, text), tokenizer=Characters(eos=False, alphabet=alphabet))
        corpus = prepare(spec)
        assert corpus.train.dtype == dtype
        assert corpus.train.tolist() == [size - 1] * 18


def test_a_tail_cuts_documents(jsonl: Path) -> None:
    corpus = prepare(TextSpec(source=str(jsonl), tokenizer=Characters(), validation=Tail(fraction=0.3)))
    ends = np.flatnonzero(np.concatenate([corpus.train, corpus.validation]) == corpus.tokenizer.eos_id)
    starts = [0, *(ends[:-1] + 1)]
    n_train = len(corpus.train)
    assert corpus.train_documents.tolist() == [start for start in starts if start < n_train]
    tail = [start - n_train for start in starts if start >= n_train]
    assert corpus.validation_documents.tolist() == sorted({0, *tail})


def test_whole_documents_are_held_out(jsonl: Path) -> None:
    spec = TextSpec(source=str(jsonl), tokenizer=Characters(), validation=Documents(fraction=0.2))
    corpus = prepare(spec)
    assert (len(corpus.train_documents), len(corpus.validation_documents)) == (32, 8)
    texts = [json.loads(line)["text"] for line in jsonl.read_text().splitlines()]
    decoded = list[str]()
    for ids, starts, n_bytes in (
        (corpus.train, corpus.train_documents, corpus.train_bytes),
        (corpus.validation, corpus.validation_documents, corpus.validation_bytes),
    ):
        side = [corpus.tokenizer.decode(part) for part in np.split(np.asarray(ids), starts[1:])]
        assert sum(len(text.encode()) for text in side) == n_bytes
        decoded += side
    assert sorted(decoded) == sorted(texts)
    assert decoded[-8:] != texts[-8:], "the documents are drawn, not the last ones"


def test_a_second_source_is_held_out(tmp_path: Path, jsonl: Path) -> None:
    spec = TextSpec(source=str(jsonl), tokenizer=BPE(vocab_size=280), validation=HeldOut(source=text_file(tmp_path)))
    corpus = prepare(spec)
    assert corpus.tokenizer.decode(corpus.validation) == TEXT
    assert corpus.validation_bytes == len(TEXT.encode())
    (tmp_path / "a.txt").write_text("changed text")
    assert prepare(spec).tokenizer.decode(prepare(spec).validation) == "changed text"


def test_second_preparation_uses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    spec = TextSpec(source=text_file(tmp_path), tokenizer=BPE(vocab_size=280))
    first = prepare(spec)
    monkeypatch.setattr(documents.DocumentFiles, "pieces", None)
    second = prepare(spec)
    assert (second.hash, second.tokenizer.hash) == (first.hash, first.tokenizer.hash)
    np.testing.assert_array_equal(second.train, first.train)
    assert not list(cache.rglob(".*")), "temporary files left behind"


def test_a_changed_file_is_never_stale(tmp_path: Path) -> None:
    spec = TextSpec(source=text_file(tmp_path, "aaaa bbbb"), tokenizer=Characters(eos=False))
    first = prepare(spec)
    text_file(tmp_path, "cccc dddd")
    second = prepare(spec)
    assert first.hash != second.hash
    assert second.tokenizer.decode(second.train) == "cccc ddd"


def test_every_setting_has_separate_ids(tmp_path: Path, cache: Path) -> None:
    source = text_file(tmp_path)
    for validation in (Tail(), Tail(fraction=0.2)):
        for tokenizer in (Characters(), Characters(eos=False)):
            prepare(TextSpec(source=source, validation=validation, tokenizer=tokenizer))
    assert len(list((cache / "corpora").iterdir())) == 4
    assert len(list((cache / "tokenizers").iterdir())) == 2


def test_another_word_split_trains_a_new_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TextSpec(source=text_file(tmp_path, "a t-shirt and " * 9), tokenizer=Words())
    with monkeypatch.context() as cut_at_hyphens:
        for module in (trainers, learn_tokenizer):
            cut_at_hyphens.setattr(module, "WORD", trainers.CLASS_RUN)
        old_tokenizer = prepare(spec).tokenizer
    assert (old_tokenizer.id_of("shirt") is None, old_tokenizer.id_of(" t-shirt")) == (False, None)
    assert prepare(spec).tokenizer.id_of(" t-shirt") is not None


def test_a_given_tokenizer_is_used(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(Characters(byte_fallback=True), ["abc"])
    assert prepare(TextSpec(source=text_file(tmp_path)), tokenizer=tokenizer).tokenizer is tokenizer


def test_characters_unknown_to_a_given_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(Characters(), ["abc"])
    with pytest.raises(UserError, match="byte_fallback: true"):
        prepare(TextSpec(source=text_file(tmp_path)), tokenizer=tokenizer)


def test_damage_in_the_cache_is_repaired(tmp_path: Path, cache: Path) -> None:
    spec = TextSpec(source=text_file(tmp_path), tokenizer=Characters())
    expected = prepare(spec).train.tolist()
    next(cache.rglob("train.bin")).write_bytes(b"xx")
    assert prepare(spec).train.tolist() == expected


def _prepare(source: str) -> int:
    return len(prepare(TextSpec(source=source, tokenizer=BPE(vocab_size=280))).train)


@pytest.mark.slow
def test_two_concurrent_preparations_succeed(tmp_path: Path, cache: Path) -> None:
    source = text_file(tmp_path, TEXT * 50)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        lengths = list(pool.map(_prepare, [source] * 4))
    assert len(set(lengths)) == 1
    assert len(list((cache / "corpora").iterdir())) == 1


def test_losing_process_uses_the_winners_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    spec, encode, racing = TextSpec(source=text_file(tmp_path), tokenizer=Characters()), encode_source, [True]

    def encode_after_another(*args: Any, **settings: Any) -> EncodedSource:
        if racing.pop() if racing else False:
            prepare(spec)
        return encode(*args, **settings)

    monkeypatch.setattr(text_corpus, "encode_source", encode_after_another)
    assert len(prepare(spec).train) > 0
    assert len(list((cache / "corpora").iterdir())) == 1


def test_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(text_corpus, "encode_source", full)
    with pytest.raises(UserError, match=f"{cache}: the disk is full; free space, or set TERCET_CACHE"):
        prepare(TextSpec(source=text_file(tmp_path), tokenizer=Characters()))
    assert not (cache / "corpora").exists(), "a half-written folder was left behind"


def test_too_little_to_divide(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the data has 1 tokens, too few"):
        prepare(TextSpec(source=text_file(tmp_path, "a"), tokenizer=Characters(eos=False)))
    with pytest.raises(UserError, match="single document, which cannot be divided"):
        prepare(TextSpec(source=text_file(tmp_path), validation=Documents()))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoding": "utf-9"}, "unknown encoding 'utf-9'; try utf-8"),
        ({"encoding": "hex"}, "unknown encoding 'hex'"),
        ({"validation": {"kind": "tail", "fraction": 1.0}}, "validation.fraction=1.0 must be above 0 and below 1"),
        ({"rows": {"kind": "padded", "stride": 0}}, "rows.stride=0 must be at least 1"),
        ({"validation": {"kind": "held_out"}}, "the key 'source' is missing"),
    ],
)
def test_impossible_settings_are_rejected_with_reason(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(TextSpec, {"source": "animals", **settings})


def test_settings_round_trip_through_plain_data() -> None:
    spec = TextSpec(source="animals", validation=Documents(fraction=0.2), tokenizer=Characters())
    assert parse(TextSpec, to_plain(spec)) == spec


def test_shakespeare_has_the_usual_split(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get("TERCET_DATA"):
        pytest.skip("TERCET_DATA is not set")
    corpus = prepare(TextSpec(source="shakespeare", tokenizer=Characters(eos=False)))
    assert (corpus.tokenizer.vocab_size, len(corpus.train), len(corpus.validation)) == (65, 1_003_854, 111_540)
    assert (corpus.train_bytes, corpus.validation_bytes, corpus.name) == (1_003_854, 111_540, "shakespeare")


def test_documents_of_a_tokenizer_with_a_mask_begin_with_bos(jsonl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 5)  # many pieces, one bos
    for tokenizer in (WordPiece(vocab_size=60), BPE(vocab_size=290, bos=True, mask=True)):
        corpus = prepare(TextSpec(source=str(jsonl), tokenizer=tokenizer, validation=Documents(fraction=0.2)))
        bos, eos = corpus.tokenizer.bos_id, corpus.tokenizer.eos_id
        for ids, starts in (
            (corpus.train, corpus.train_documents),
            (corpus.validation, corpus.validation_documents),
        ):
            assert np.flatnonzero(ids == bos).tolist() == starts.tolist()
            assert np.flatnonzero(ids == eos).tolist() == [*(starts[1:] - 1).tolist(), len(ids) - 1]


@pytest.mark.parametrize("tokenizer", [BPE(vocab_size=290, bos=True), BPE(vocab_size=290, mask=True)])
def test_other_documents_do_not(jsonl: Path, tokenizer: BPE) -> None:
    corpus = prepare(TextSpec(source=str(jsonl), tokenizer=tokenizer))
    assert not (corpus.train == (corpus.tokenizer.bos_id if tokenizer.bos else corpus.tokenizer.mask_id)).any()
    assert corpus.train_bytes > 0

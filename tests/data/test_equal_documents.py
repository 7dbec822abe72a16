"""Equal documents are on one side of the split, so no validation document is trained on."""

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
from divided_documents import documents_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import Documents, TextSpec, prepare, prepare_tokens
from tercet.data.corpora.id_split import draw_documents, split_documents
from tercet.data.shards import shard_writer
from tercet.data.sources import documents
from tercet.tokens import Characters


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path_factory.mktemp("cache")))


def jsonl(folder: Path, texts: list[str]) -> str:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def sides(spec: TextSpec) -> tuple[list[str], list[str]]:
    """Return the training and the validation documents."""
    corpus = prepare(spec)
    assert corpus.validation_documents is not None
    return documents_of(corpus)


@pytest.mark.slow
@given(
    texts=st.lists(st.text("abc ", min_size=1, max_size=3).filter(str.strip), min_size=2, max_size=40),
    fraction=st.sampled_from([0.1, 0.3, 0.5]),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_document_is_on_both_sides(
    texts: list[str], fraction: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = jsonl(tmp_path_factory.mktemp("texts"), texts)
    spec = TextSpec(source=path, tokenizer=Characters(), validation=Documents(fraction=fraction))
    if len(set(texts)) == 1:
        with pytest.raises(UserError, match=f"{len(texts)} documents that are all equal, which cannot be divided"):
            prepare(spec)
        return
    train, held_out = sides(spec)
    assert sorted(train + held_out) == sorted(texts)
    assert train
    assert held_out
    assert not set(train) & set(held_out)
    max_held_out = max(1, round(len(texts) * fraction))
    assert len(held_out) <= max_held_out or len(set(held_out)) == 1


def test_unequal_documents_are_drawn_by_number_only(tmp_path: Path) -> None:
    texts = [f"document {number} {'x' * (number % 7)}" for number in range(50)]
    _, held_out = sides(
        TextSpec(source=jsonl(tmp_path, texts), tokenizer=Characters(), validation=Documents(fraction=0.2))
    )
    ranks = [hashlib.sha256(str(number).encode()).digest() for number in range(50)]
    numbers = sorted(sorted(range(50), key=ranks.__getitem__)[:10])
    assert held_out == [texts[number] for number in numbers]


def test_long_documents_that_differ_at_their_end_are_not_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 20)  # several pieces per document
    texts = ["a word and another\n" * 9 + end for end in ("x", "y", "x", "z")]
    train, held_out = sides(TextSpec(source=jsonl(tmp_path, texts), tokenizer=Characters(), validation=Documents()))
    assert sorted(train + held_out) == sorted(texts)
    assert len(held_out) == 1
    assert held_out[0].endswith(("y", "z"))  # the two equal documents are more than one document


def test_many_documents_are_fast(tmp_path: Path) -> None:
    ids = np.zeros(60_000, dtype=np.uint16)
    ids.tofile(tmp_path / "train.bin")
    starts, hashes = np.arange(60_000), np.arange(60_000, dtype=np.uint64) // 2
    is_held_out = draw_documents(Documents(fraction=0.1), hashes, name="many")
    split_documents(tmp_path, starts, is_held_out, ids.dtype)
    assert is_held_out.sum() == 6_000
    assert (is_held_out[::2] == is_held_out[1::2]).all()


@pytest.mark.slow
@pytest.mark.parametrize(("shard_tokens", "piece"), [(40, 1000), (800, 20)])  # no document is cut
def test_no_document_of_a_folder_of_shards_is_on_both_sides(
    shard_tokens: int, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PIECE", piece)
    draw = random.Random(3)
    distinct = ["".join(draw.choices("ab \n", k=draw.randint(5, 120))) + str(number) for number in range(30)]
    texts = [*distinct, *distinct[::2], *distinct[::3]]
    draw.shuffle(texts)
    spec = TextSpec(source=jsonl(tmp_path, texts), tokenizer=Characters(), validation=Documents(fraction=0.3))
    prepare_tokens(spec, tmp_path / "tokens", shard_tokens=shard_tokens, workers=1)
    corpus = prepare(TextSpec(source=str(tmp_path / "tokens")))
    train = corpus.tokenizer.decode(np.asarray(corpus.train).tolist())
    held_out = [
        corpus.tokenizer.decode(part.tolist())
        for part in np.split(corpus.validation, np.asarray(corpus.validation_documents)[1:])
    ]
    assert held_out
    assert all(texts.count(text) == held_out.count(text) for text in held_out)
    assert len(train) + sum(map(len, held_out)) == sum(map(len, texts))


@pytest.mark.slow
def test_the_side_of_a_document_that_was_cut_by_a_kill_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PIECE", 20)
    draw = random.Random(4)
    texts = ["\n".join("".join(draw.choices("abc", k=15)) for _ in range(20)) for _ in range(8)]
    spec = TextSpec(source=jsonl(tmp_path, texts), tokenizer=Characters(), validation=Documents(fraction=0.4))
    prepare_tokens(spec, tmp_path / "whole", shard_tokens=100, workers=1)

    write, count = shard_writer.write_sealed_json, 0

    def write_or_interrupt(path: Path, data: object) -> None:
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer, "write_sealed_json", write_or_interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_tokens(spec, tmp_path / "cut", shard_tokens=100, workers=1)
    prepare_tokens(spec, tmp_path / "cut", shard_tokens=100, workers=1)
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.suffix in (".bin", ".npy")}
        for name in ("whole", "cut")
    ]
    assert files[0] == files[1]


def test_documents_are_drawn_by_a_hash_of_their_number() -> None:
    """The division of recorded runs and published figures, which must not change."""
    order = sorted(range(50), key=lambda number: hashlib.sha256(str(number).encode()).digest())
    drawn = draw_documents(Documents(fraction=0.1), np.arange(50, dtype=np.uint64), name="fifty")
    assert np.flatnonzero(drawn).tolist() == sorted(order[:5]) == [8, 9, 39, 46, 49]

"""Near duplicates stay together with `validation: {kind: similarity}`; `summarize_split` counts divided ones."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divided_documents import documents_of

from tercet.config import UserError, parse
from tercet.data import (
    ConversationsSpec,
    DocumentClusters,
    Documents,
    HeldOut,
    LabelsSpec,
    PairsSpec,
    QueriesSpec,
    Tail,
    TextSpec,
    prepare,
    prepare_conversations,
    prepare_pairs,
    prepare_queries,
    prepare_tokens,
    read_label_examples,
    summarize_split,
)
from tercet.tokens import Characters, PlainIds

SIMILARITY = {"kind": "similarity"}
CHARACTERS = {"kind": "characters", "pad": True, "bos": True}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))


def make_texts(families: int = 30, copies: int = 4) -> list[str]:
    """Return texts of which each has near duplicates: other letters at the end. The first word names the family."""
    draw = random.Random(7)
    bases = [f"f{number:02} " + "".join(draw.choices("abcdefghijklmnop ", k=120)) for number in range(families)]
    texts = [f"{base} {'xyzw'[copy] * 4}" for base in bases for copy in range(copies)]
    draw.shuffle(texts)
    return texts


def write(name: str, rows: list[dict[str, Any]]) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def family(text: str) -> str:
    return text.split()[0]


def test_similar_documents_are_in_one_part_whatever_their_order() -> None:
    texts = make_texts()
    spec = TextSpec(
        source=write("a.jsonl", [{"text": text} for text in texts]), tokenizer=Characters(),
        validation=DocumentClusters(fraction=0.2),
    )  # fmt: skip
    train, validation = documents_of(prepare(spec))
    assert len(validation) == 24  # six families
    assert {*map(family, train)}.isdisjoint(map(family, validation))
    write("a.jsonl", [{"text": text} for text in reversed(texts)])
    assert sorted(documents_of(prepare(spec))[1]) == sorted(validation)
    spec = TextSpec(source="a.jsonl", tokenizer=Characters(), validation=Documents(fraction=0.2))
    plain = documents_of(prepare(spec))
    assert {*map(family, plain[0])} & {*map(family, plain[1])}


def test_lists_of_ids_have_clusters() -> None:
    draw = random.Random(1)
    bases = [draw.choices(range(100), k=50) for _ in range(20)]
    lists = [[*base, number] for base in bases for number in range(3)]
    path = write("ids.jsonl", [{"text": ids} for ids in lists])
    spec = TextSpec(source=path, tokenizer=PlainIds(), validation=DocumentClusters(threshold=0.6))
    corpus = prepare(spec)
    starts = corpus.validation_documents
    assert len(starts) == 6
    train = {tuple(part[:50].tolist()) for part in np.split(np.asarray(corpus.train), corpus.train_documents[1:])}
    assert train.isdisjoint(tuple(part[:50].tolist()) for part in np.split(corpus.validation, starts[1:]))
    assert summarize_split(spec) is None


@pytest.mark.slow
def test_similar_examples_are_in_one_part() -> None:
    texts = make_texts()
    labels = parse(LabelsSpec, {
        "source": write("labels.jsonl", [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(texts)]),
        "validation": {**SIMILARITY, "count": 8},
    })  # fmt: skip
    sides = [
        {family(example.text) for example in read_label_examples(labels, side)} for side in ("train", "validation")
    ]
    assert len(read_label_examples(labels, "validation")) == 8
    assert sides[0].isdisjoint(sides[1])
    pairs = parse(PairsSpec, {
        "source": write("pairs.jsonl", [{"source": text, "target": "so"} for text in texts]),
        "validation": SIMILARITY, "tokenizer": CHARACTERS,
    })  # fmt: skip
    corpus = prepare_pairs(pairs)
    assert len(corpus.validation) == 12  # a tenth
    held_out = {family(pair.source) for pair in corpus.validation_texts}
    assert len(held_out) == 3
    queries = parse(QueriesSpec, {
        "source": write("queries.jsonl", [{"query": text, "document": "so"} for text in texts]),
        "validation": SIMILARITY, "tokenizer": CHARACTERS,
    })  # fmt: skip
    assert {family(pair.query) for pair in prepare_queries(queries).validation_texts} == held_out
    chat = parse(ConversationsSpec, {
        "source": write("chat.jsonl", [{"prompt": text, "response": "so"} for text in texts]),
        "validation": SIMILARITY, "tokenizer": CHARACTERS,
    })  # fmt: skip
    assert len(prepare_conversations(chat).validation) == 12
    for spec in (labels, pairs, chat):
        summary = summarize_split(spec)
        assert summary is not None
        assert (summary.kind, summary.clusters, summary.largest_cluster, summary.leaks) == ("similarity", 30, 4, 0)


def test_leaks_are_counted_under_each_division() -> None:
    texts = make_texts(30, 4)
    path = write("a.jsonl", [{"text": text} for text in texts])
    spec = TextSpec(source=path, tokenizer=Characters(), validation=Documents(fraction=0.25))
    train, validation = documents_of(prepare(spec))
    summary = summarize_split(spec)
    assert summary is not None
    assert (summary.kind, summary.train, summary.validation) == ("documents", 90, 30)
    assert summary.leaks == sum(family(text) in {*map(family, train)} for text in validation) > 10
    assert (summary.clusters, summary.largest_cluster, summary.threshold) == (30, 4, 0.8)
    tail = summarize_split(TextSpec(source=path, validation=Tail(fraction=0.25)))
    assert tail is not None
    assert tail.validation == 30
    assert tail.leaks == sum(family(text) in {*map(family, texts[:90])} for text in texts[90:])
    other = write("b.jsonl", [{"text": text} for text in [texts[0].upper() + "!", "something else", texts[1][:-2]]])
    held_out = summarize_split(TextSpec(source=path, validation=HeldOut(source=other)))
    assert held_out is not None
    assert (held_out.train, held_out.validation, held_out.leaks) == (120, 3, 2)
    without = summarize_split(TextSpec(source=path), threshold=None)
    assert without is not None
    assert (without.clusters, without.leaks, without.threshold) == (None, None, None)
    Path("one.txt").write_text("a single document")
    assert summarize_split(TextSpec(source="one.txt")) is None


def test_data_of_one_cluster_cannot_be_divided() -> None:
    texts = make_texts(1, 4)
    path = write("a.jsonl", [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(texts)])
    with pytest.raises(UserError, match=r"is 4 documents that form one cluster of similar documents, which cannot be"):
        prepare(TextSpec(source=path, tokenizer=Characters(), validation=DocumentClusters()))
    with pytest.raises(UserError, match=r"has only one cluster of similar texts, which cannot be divided; set"):
        read_label_examples(parse(LabelsSpec, {"source": path, "validation": SIMILARITY}), "train")
    with pytest.raises(UserError, match=r"not in shards; set data\.validation to \{kind: documents\}"):
        prepare_tokens(TextSpec(source=path, tokenizer=Characters(), validation=DocumentClusters()), "tokens")

"""All documents or pairs of a group, such as an author, are in one part."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divided_documents import documents_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.config import UserError, parse
from tercet.data import (
    DocumentClusters,
    Documents,
    PairsSpec,
    TextSpec,
    prepare,
    prepare_pairs,
    prepare_tokens,
    summarize_split,
)
from tercet.data.corpora.prepared import open_folder
from tercet.tokens import Characters

LETTERS = str.maketrans("0123456789", "ACDEFGHIKL")  # sequences have no digits
ROWS = [(f"text {'ab' * (n % 7 + 1)} number {n}".translate(LETTERS), f"author{n * 7 % 20}") for n in range(200)]
GROUPS = dict(ROWS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))


def write(kind: str, rows: list[tuple[str, str]] = ROWS) -> str:
    path = Path(f"texts.{kind}")
    match kind:
        case "csv":
            path.write_text("text,author\n" + "".join(f"{text},{group}\n" for text, group in rows))
        case "jsonl":
            path.write_text("".join(json.dumps({"text": text, "author": group}) + "\n" for text, group in rows))
        case "fa":
            path.write_text("".join(f">s author={group}\n{text.replace(' ', '')}\n" for text, group in rows))
        case _:
            pytest.importorskip("pyarrow")
            from pyarrow import parquet, table

            parquet.write_table(table({"text": [text for text, _ in rows], "author": [g for _, g in rows]}), path)
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "fa", pytest.param("parquet", marks=pytest.mark.slow)])
def test_documents_of_a_group_are_in_one_part(kind: str) -> None:
    groups = GROUPS if kind != "fa" else {text.replace(" ", ""): group for text, group in ROWS}
    settings = {"group_pattern": r"author=(\w+)"} if kind == "fa" else {"group_field": "author"}
    spec = TextSpec(
        source=write(kind), tokenizer=Characters(), validation=Documents(fraction=0.25), **settings  # type: ignore
    )  # fmt: skip
    train, validation = documents_of(prepare(spec))
    assert sorted(train + validation) == sorted(groups)
    assert len(validation) == 50  # five authors with ten texts each
    authors = [{groups[text] for text in texts} for texts in (train, validation)]
    assert authors[0].isdisjoint(authors[1])
    summary = summarize_split(spec)
    assert summary is not None
    assert summary.groups is not None
    assert vars(summary.groups) == {"count": 20, "largest": 10, "train": 15, "validation": 5}
    write(kind, ROWS[::-1])
    assert sorted(documents_of(prepare(spec))[1]) == sorted(validation)


@pytest.mark.slow
@given(authors=st.lists(st.integers(0, 8), min_size=2, max_size=40).filter(lambda items: len({*items}) > 1))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_group_is_in_both_parts(authors: list[int]) -> None:
    rows = [(f"number {n}", f"a{author}") for n, author in enumerate(authors)]
    spec = TextSpec(source=write("jsonl", rows), tokenizer=Characters(), group_field="author", validation=Documents())
    train, validation = documents_of(prepare(spec))
    groups = dict(rows)
    assert train
    assert validation
    assert {groups[text] for text in train}.isdisjoint(groups[text] for text in validation)


def test_groups_and_similar_texts_are_united() -> None:
    rows = [(f"{'abcdefghijklmnopqrstuvwxyz'[n // 2] * 3} {n // 2} unlike the others {'!' * (n % 2)}", f"a{n}")
            for n in range(40)]  # fmt: skip
    rows[2:4] = [(rows[2][0], "a0"), (rows[3][0], "a3")]  # joins the first and the second pair of near duplicates
    spec = TextSpec(
        source=write("jsonl", rows), tokenizer=Characters(), group_field="author",
        validation=DocumentClusters(fraction=0.5, threshold=1.0),
    )  # fmt: skip
    train, validation = documents_of(prepare(spec))
    for texts in (train, validation):
        assert len({text.rstrip("!") for text in texts}) * 2 == len(texts)
        assert len([text for text, _ in rows[:4] if text in texts]) in (0, 4)


@pytest.mark.slow
def test_groups_are_whole_in_shards() -> None:
    spec = TextSpec(source=write("jsonl"), tokenizer=Characters(), group_field="author", validation=Documents())
    prepare_tokens(spec, "tokens", shard_tokens=256, workers=1)
    train, validation = documents_of(prepare(TextSpec(source="tokens")))
    assert sorted(train + validation) == sorted(GROUPS)
    assert validation
    assert {GROUPS[text] for text in train}.isdisjoint(GROUPS[text] for text in validation)
    assert open_folder("tokens").contents.validation.documents == len(validation)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "tsv"])
def test_pairs_of_a_group_are_in_one_part(kind: str) -> None:
    rows = [{"source": text, "target": "so", "speaker": n % 25} for n, (text, _) in enumerate(ROWS)]
    path = Path(f"pairs.{kind}")
    separator = "," if kind == "csv" else "\t"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]
        path.write_text("".join(line + "\n" for line in lines))
    settings = {"source": str(path), "group_field": "speaker", "tokenizer": {"kind": "characters"}}
    corpus = prepare_pairs(parse(PairsSpec, settings))
    speakers = {row["source"]: row["speaker"] for row in rows}
    held_out = {speakers[pair.source] for pair in corpus.validation_texts}
    assert len(corpus.validation_texts) == 8 * len(held_out) == 16  # at most a tenth
    summary = summarize_split(parse(PairsSpec, settings))
    assert summary is not None
    assert summary.groups is not None
    assert (summary.groups.count, summary.groups.validation, summary.kind) == (25, 2, "drawn")
    plain = {name: value for name, value in settings.items() if name != "group_field"}
    assert prepare_pairs(parse(PairsSpec, plain)).hash != corpus.hash


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, r"groups are divided by whole documents, but validation is tail; set validation to \{kind: documents\}"),
        ({"validation": {"kind": "held_out", "source": "b"}}, "but validation is held_out"),
        ({"group_field": "text", "validation": "documents"}, "group_field and text_field are both 'text'"),
        ({"group_pattern": "(a)", "validation": "documents"}, "group_field and group_pattern exclude each other"),
        ({"group_field": None, "group_pattern": "a", "validation": "documents"}, "has 0 groups"),
        ({"group_field": "autor", "validation": "documents"}, "no field 'autor'; did you mean 'author'"),
        ({"source": "animals", "validation": "documents"}, "animals is a named dataset, which has no groups; remove"),
        ({"source": "a.txt", "validation": "documents"}, "a.txt has no field 'author', because it is plain text"),
        ({"source": "ids.npy", "validation": "documents"}, "ids.npy contains ids, which has no groups; remove"),
        ({"source": "null.jsonl", "validation": "documents"}, "null.jsonl line 1: None in 'author' is not a group"),
        ({"source": "one.jsonl", "validation": "documents"}, "is 2 documents of one group, which cannot be divided"),
        ({"source": "a.fa", "validation": "documents"}, r"no 'author' in its header \(fields: b\); set data"),
        ({"group_field": None, "group_pattern": "(a)", "validation": "documents"}, "has no headers, to which"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_read(settings: dict[str, Any], words: str) -> None:
    write("jsonl")
    Path("a.txt").write_text("text")
    Path("a.fa").write_text(">s b=1\nACGT\n>t b=2\nAC\n")
    Path("null.jsonl").write_text('{"text": "a", "author": null}\n{"text": "b", "author": "x"}\n')
    Path("one.jsonl").write_text('{"text": "a", "author": 1}\n{"text": "b", "author": 1}\n')
    np.save("ids.npy", np.arange(50, dtype=np.uint16))
    base = {"source": "texts.jsonl", "group_field": "author", "tokenizer": "characters"}
    with pytest.raises(UserError, match=words) as error:
        prepare(parse(TextSpec, {**base, **settings}, name="data"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": "numbers"}, "numbers is a named dataset, which has no groups"),
        ({"target": "b.txt"}, "group_field is a column of one file of pairs, but target is another file; write"),
        ({"validation": {"kind": "held_out", "source": "b"}}, "groups divide the pairs of one source"),
        ({"source": "plain.tsv"}, "plain.tsv has no header with 'source' and 'target', which data"),
        ({"group_field": "speker"}, "has no field 'speker'"),
    ],
)  # fmt: skip
def test_groups_of_pairs_that_cannot_be_read(settings: dict[str, Any], words: str) -> None:
    Path("pairs.jsonl").write_text('{"source": "a", "target": "b", "speaker": "x"}\n')
    Path("plain.tsv").write_text("a\tb\n")
    base = {"source": "pairs.jsonl", "group_field": "speaker", "tokenizer": "characters"}
    with pytest.raises(UserError, match=words):
        prepare_pairs(parse(PairsSpec, {**base, **settings}, name="data"))

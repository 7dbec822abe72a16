"""Pairs of queries and documents: formats, errors, the split, and which documents may serve as negatives."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.config import UserError, parse
from tercet.data import QueriesSpec, QueryFile, QueryPair, prepare_queries, query_rows
from tercet.data.text_hashes import hash_text
from tercet.tokens import Characters, Tokenizer

TOKENIZER = Tokenizer.train(Characters(bos=True, eos=True, pad=True), ["abcdefghijklmnopqrstuvwxyz 0123456789"])
PAIRS = [
    QueryPair("cat", "a cat sleeps"),
    QueryPair("cat", "cats eat", "a dog eats"),
    QueryPair("dog", "a dog eats"),
    QueryPair("cats eat", "cat"),
    QueryPair("bird", "a cat sleeps"),
]


def write(path: Path, pairs: list[QueryPair]) -> Path:
    names = {"query": "title", "document": "body", "negative": "other"}
    if path.suffix == ".jsonl":
        lines = [json.dumps({names[key]: text or None for key, text in pair._asdict().items()}) for pair in pairs]
    else:
        separator = "," if path.suffix == ".csv" else "\t"
        lines = [separator.join(row) for row in [tuple(names.values()), *pairs]]
    path.write_text("\n".join(lines) + "\n")
    return path


def spec(source: Path, **settings: Any) -> QueriesSpec:
    fields = {"query_field": "title", "document_field": "body", "negative_field": "other"}
    return parse(QueriesSpec, {"source": str(source), **fields, **settings})


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
def test_all_formats_give_the_same_pairs(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"pairs{suffix}", PAIRS)
    file = QueryFile(path=path, query_field="title", document_field="body", negative_field="other")
    assert list(file.examples()) == PAIRS


def test_without_a_negative_field_there_are_no_negatives(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.csv", PAIRS)
    file = QueryFile(path=path, query_field="title", document_field="body")
    assert [pair.negative for pair in file.examples()] == [""] * len(PAIRS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"query_field": "titel"}, "did you mean 'title'"),
        ({"document_field": "text"}, r"data\.document_field"),
        ({"negative_field": "wrong"}, r"data\.negative_field"),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_missing_field_is_reported_with_its_setting(
    tmp_path: Path, settings: dict[str, str], words: str, suffix: str
) -> None:
    source = write(tmp_path / f"pairs{suffix}", PAIRS)
    with pytest.raises(UserError, match=words):
        prepare_queries(spec(source, **settings), tokenizer=TOKENIZER)


def test_other_suffixes_and_repeated_fields_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("a\n")
    with pytest.raises(UserError, match="none of the suffixes of queries and documents"):
        prepare_queries(spec(tmp_path / "pairs.txt"), tokenizer=TOKENIZER)
    with pytest.raises(UserError, match="'title' appears twice"):
        spec(tmp_path / "pairs.csv", document_field="title")
    with pytest.raises(UserError, match="no file or dataset of queries is called 'python-docstring-serch'"):
        prepare_queries(parse(QueriesSpec, {"source": "python-docstring-serch"}), tokenizer=TOKENIZER)


def test_all_pairs_of_a_query_are_in_the_same_part_and_empty_ones_are_counted(tmp_path: Path) -> None:
    pairs = [QueryPair(f"query {n // 3}", f"document {n}") for n in range(90)]
    source = write(tmp_path / "pairs.jsonl", [*pairs, QueryPair("", "a"), QueryPair("b", " ")])
    # JSON null stands for the missing texts, which is an error for queries and documents
    with pytest.raises(UserError, match="not text"):
        prepare_queries(spec(source), tokenizer=TOKENIZER)
    source = write(tmp_path / "pairs.tsv", [*pairs, QueryPair("", "a"), QueryPair("b", " ")])
    corpus = prepare_queries(spec(source), tokenizer=TOKENIZER)
    assert corpus.skipped == 2
    assert len(corpus.train) + len(corpus.validation) == 90
    held_out = {pair.query for pair in corpus.validation_texts}
    assert len(corpus.validation_texts) == len(corpus.validation) == 3 * len(held_out) > 0
    assert prepare_queries(spec(source), tokenizer=TOKENIZER).validation_texts == corpus.validation_texts  # the cache


def test_relevant_documents_and_the_query_itself_are_never_negatives(tmp_path: Path) -> None:
    source = write(tmp_path / "pairs.csv", PAIRS)
    validation = {"kind": "held_out", "source": str(source)}
    corpus = prepare_queries(spec(source, validation=validation), tokenizer=TOKENIZER)
    numbers = np.arange(len(PAIRS))
    assert TOKENIZER.bos_id is not None
    assert TOKENIZER.eos_id is not None
    special = {"bos": TOKENIZER.bos_id, "eos": TOKENIZER.eos_id, "pad": TOKENIZER.pad_id or 0}
    rows = query_rows(corpus.train, numbers, max_len=16, **special)
    documents = [
        TOKENIZER.decode(row[mask].tolist()) for row, mask in zip(rows.documents, rows.document_mask, strict=True)
    ]
    assert documents == [*(pair.document for pair in PAIRS), "a dog eats"]
    assert [TOKENIZER.decode(row.tolist()) for row in rows.queries] == [pair.query for pair in PAIRS]
    relevant = {(pair.query, pair.document) for pair in PAIRS}
    expected = [
        [
            column == row or ((pair.query, document) not in relevant and document != pair.query)
            for column, document in enumerate(documents)
        ]
        for row, pair in enumerate(PAIRS)
    ]
    assert rows.candidates.tolist() == expected
    assert not rows.candidates[0, 1]  # another document of the same query
    assert not rows.candidates[2, 5]  # a hard negative of another query that is relevant to this one
    assert not rows.candidates[4, 0]  # a duplicate of the query's own document
    assert corpus.train.hashes.reshape(-1, 3)[0].tolist() == [hash_text(text) for text in PAIRS[0]]


@pytest.mark.slow
def test_docstring_search_separates_queries_from_code() -> None:
    corpus = prepare_queries(parse(QueriesSpec, {"source": "python-docstring-search"}), tokenizer=None)
    assert len(corpus.train) > 1000
    assert 100 < len(corpus.validation) <= 1000
    for pair in corpus.validation_texts[:50]:
        assert pair.document.startswith(("def ", "async def "))
        assert pair.query not in pair.document

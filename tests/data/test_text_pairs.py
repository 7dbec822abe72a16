"""Labeled pairs of texts: files, the negatives of queries, the split, and rows of two texts."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from tercet.config import UserError, parse
from tercet.data import LabelsSpec, QueryPair, label_rows, prepare_labels, read_label_examples
from tercet.data.datasets.label_datasets import find_labels
from tercet.data.examples.negatives import DEPTH, NegativesSource
from tercet.data.examples.queries import QueryTexts
from tercet.data.rows.pair_rows import MIN_PAIR_LEN, frame_pair
from tercet.data.sources.tables import SPREADSHEET_ERRORS

BOS, EOS, PAD = 1, 2, 0
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\t\r\n"), max_size=20)
IDS = st.lists(st.integers(3, 9), max_size=30)
PAIR_FIELDS = {"text_field": "query", "pair_field": "document"}
RELEVANT = {**PAIR_FIELDS, "problem_type": "multi_label_classification", "label_fields": ["relevant"]}
WORDS = ["cat", "dog", "cow", "bee", "hen", "ant", "owl", "fox", "elk", "yak"]


def write_pairs(path: Path, rows: list[tuple[str, str, int]]) -> Path:
    fields = ("query", "document", "relevant")
    if path.suffix == ".jsonl":
        data = "".join(json.dumps(dict(zip(fields, row, strict=True))) + "\n" for row in rows)
    else:
        buffer = io.StringIO(newline="")
        csv.writer(buffer, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([fields, *rows])
        data = buffer.getvalue()
    path.write_text(data, encoding="utf-8")
    return path


@pytest.mark.slow
@given(
    rows=st.lists(st.tuples(TEXT, TEXT, st.integers(0, 1)), min_size=1, max_size=9),
    form=st.sampled_from(["jsonl", "csv", "tsv"]),
)
@example(rows=[("", "#REF!", 0)], form="jsonl")
def test_written_pairs_are_read_back(
    rows: list[tuple[str, str, int]], form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if form == "tsv":  # without quotes
        rows = [(query.replace('"', ""), document.replace('"', ""), label) for query, document, label in rows]
    # A table with the error of a formula is rejected.
    assume(form == "jsonl" or SPREADSHEET_ERRORS.isdisjoint(text.strip() for row in rows for text in row[:2]))
    path = write_pairs(tmp_path_factory.mktemp("pairs") / f"a.{form}", rows)
    examples = list(find_labels(parse(LabelsSpec, {"source": str(path), **RELEVANT})).examples())
    expected = [
        ((query.strip(), document.strip()), ("relevant",) * label)
        for query, document, label in rows
    ]  # fmt: skip
    assert [(example.texts, example.labels) for example in examples] == expected
    assert [example.identity for example in examples] == [texts[0] for texts, _ in expected]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pair_field": "text"}, "'text' appears twice in text_field, pair_field and label_fields; name each"),
        ({"pair_field": "label"}, "'label' appears twice in text_field, pair_field and label_fields; name each"),
        ({"pair_field": "b", "over": "tokens"}, "pair_field requires labels of pairs; set over to texts"),
        ({"negatives": 2}, "negatives are drawn for pairs with one label, relevant or not; set pair_field"),
        ({**RELEVANT, "label_fields": ["a", "b"], "negatives": 2}, "negatives are drawn for pairs with one label"),
        ({**RELEVANT, "negative_field": "c"}, "negative_field requires data without labels; set negatives"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        parse(LabelsSpec, {"source": "a.jsonl", **settings})


def test_a_row_without_the_second_text_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"query": "a", "document": "b", "relevant": 1}\n{"query": "a", "relevant": 0}\n')
    with pytest.raises(UserError, match=r"line 2 .*'document'.*data\.pair_field"):
        list(find_labels(parse(LabelsSpec, {"source": str(path), **RELEVANT})).examples())


@given(first=IDS, second=IDS, max_len=st.integers(MIN_PAIR_LEN, 40))
def test_texts_are_truncated_as_in_transformers(first: list[int], second: list[int], max_len: int) -> None:
    row, start, is_cut = frame_pair(first, second, max_len=max_len, bos=BOS, eos=EOS)
    kept_first, kept_second = row[1 : start - 1], row[start:-1]
    assert (row[0], row[start - 1], row[-1]) == (BOS, EOS, EOS)
    assert (kept_first, kept_second) == (first[: len(kept_first)], second[: len(kept_second)])
    assert len(row) == min(max_len, len(first) + len(second) + 3)
    assert is_cut == (len(row) < len(first) + len(second) + 3)
    model = WordLevel({str(number): number for number in range(max([BOS, EOS, *first, *second]) + 1)}, unk_token="0")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.enable_truncation(max_len - 3, strategy="longest_first")
    expected = tokenizer.encode(" ".join(map(str, first)), " ".join(map(str, second)))
    assert kept_first + kept_second == expected.ids
    assert len(kept_first) == expected.sequence_ids.count(0)


def test_too_short_rows_are_rejected() -> None:
    with pytest.raises(ValueError, match="max_len=4 leaves no room for two texts; allow at least 5"):
        frame_pair([3], [4], max_len=4, bos=BOS, eos=EOS)


def test_tokenized_rows_equal_the_texts_and_a_query_is_in_one_part(tmp_path: Path) -> None:
    rows = [(f"{query} sleeps", f"the {word} and the {query}", int(word == query)) for query in WORDS for word in WORDS]
    path = write_pairs(tmp_path / "a.csv", rows)
    spec = parse(LabelsSpec, {"source": str(path), "validation": {"kind": "drawn", "count": 20}, **RELEVANT})
    corpus = prepare_labels(spec)
    queries = [{example.texts[0] for example in read_label_examples(spec, part)} for part in ("train", "validation")]
    assert queries[0].isdisjoint(queries[1])
    assert len(queries[0] | queries[1]) == len(WORDS)
    examples = read_label_examples(spec, "train")
    batch = label_rows(corpus.train, np.arange(len(examples)), max_len=12, bos=BOS, eos=EOS, pad=PAD)
    assert batch.segments is not None
    assert batch.targets.tolist() == [[float(len(example.labels))] for example in examples]
    assert corpus.train.row_lengths.tolist() == batch.mask.sum(1).tolist()
    for number, pair in enumerate(examples):
        first, second = (corpus.tokenizer.encode(text) for text in pair.texts)
        row = [BOS, *first, EOS, *second, EOS]
        assert batch.tokens[number, : len(row)].tolist() == row
        assert not batch.mask[number, len(row) :].any()
        assert batch.segments[number, : len(row)].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def drawn(pairs: list[QueryPair], count: int) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    source = NegativesSource(source=QueryTexts(name="pairs", items=tuple(pairs)), count=count, label="relevant")
    return [(example.texts, example.labels) for example in source.examples()]


def test_negatives_are_similar_documents_that_are_not_relevant() -> None:
    pytest.importorskip("bm25s")
    documents = [f"the {word} number {number}" for word in WORDS for number in range(DEPTH // 5)]
    pairs = [QueryPair("which cat?", documents[0]), QueryPair("which cat?", documents[1], "no cat")]
    pairs += [QueryPair(f"q{number}", document) for number, document in enumerate(documents)]
    pairs.append(QueryPair("q", "which cat?"))
    examples = drawn(pairs, 5)
    assert examples == drawn(pairs, 5)
    of_query = [(texts[1], labels) for texts, labels in examples if texts[0] == "which cat?"]
    assert of_query[0] == (documents[0], ("relevant",))
    assert [document for document, labels in of_query if labels] == documents[:2]
    negatives = [document for document, labels in of_query if not labels]
    assert len(negatives) == len(set(negatives)) == 6  # five drawn ones and the hard negative
    assert "no cat" in negatives
    assert not {*documents[:2], "which cat?"} & {*negatives}
    many = drawn(pairs, DEPTH)
    assert set(documents[2 : DEPTH // 5]) <= {texts[1] for texts, _ in many if texts[0] == "which cat?"}


def test_few_documents_give_few_negatives() -> None:
    pytest.importorskip("bm25s")
    assert drawn([QueryPair("a", "b"), QueryPair("c", "d")], 9) == [
        (("a", "b"), ("relevant",)), (("a", "d"), ()), (("c", "d"), ("relevant",)), (("c", "b"), ()),
    ]  # fmt: skip


def test_missing_bm25s_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.data.examples.negatives.bm25_scorer", lambda documents: None)  # pyright: ignore
    with pytest.raises(UserError, match=r"bm25s, which is not installed; pip install 'tercet\[bm25\]'"):
        drawn([QueryPair("a", "b"), QueryPair("c", "d")], 1)

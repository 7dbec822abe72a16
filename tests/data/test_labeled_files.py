"""Labeled texts are read from files as they were written, and errors are reported with their line."""

import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import Example, LabelFile, LabelsSpec, read_examples, read_label_examples
from tercet.data.examples.labels import LabelTexts
from tercet.data.sources.tables import SPREADSHEET_ERRORS

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
LABEL = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=9)
ROWS = st.lists(st.tuples(TEXT, LABEL), min_size=1, max_size=9)


def write_file(path: Path, data: str | bytes) -> LabelFile:
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return LabelFile(path=path)


def read_pairs(file: LabelFile) -> list[tuple[str, str]]:
    return [(item.texts[0], item.labels[0]) for item in file.examples()]


@pytest.mark.slow
@given(rows=ROWS, ending=st.sampled_from(["\n", "\r\n"]), form=st.sampled_from(["csv", "tsv", "csv.gz", "jsonl"]))
@example(rows=[('he said "a, b"', "x")], ending="\r\n", form="tsv")
@example(rows=[("\u2028\x85", "é")], ending="\n", form="csv")
@example(rows=[("#REF!", "#N/A")], ending="\n", form="jsonl")
def test_written_rows_are_read_back(
    rows: list[tuple[str, str]], ending: str, form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # A table with the error of a formula is rejected.
    assume(form == "jsonl" or SPREADSHEET_ERRORS.isdisjoint(cell.strip() for row in rows for cell in row))
    path = tmp_path_factory.mktemp("rows") / f"a.{form}"
    if form == "jsonl":
        data = "".join(json.dumps({"label": label, "text": text, "n": 3}) + ending for text, label in rows)
    elif form == "tsv":
        rows = [(re.sub(r"[\t\r\n]", " ", text), label) for text, label in rows]
        table = [("label", "text", "n"), *((label, text, "3") for text, label in rows)]
        data = "".join("\t".join(row) + ending for row in table)
    else:
        buffer = io.StringIO(newline="")
        # Python 3.11 writes a single "\r" without the quotes that its reader requires.
        quoting = csv.QUOTE_ALL if any("\r" in text for text, _ in rows) else csv.QUOTE_MINIMAL
        writer = csv.writer(buffer, lineterminator=ending, quoting=quoting)
        writer.writerows([("label", "text", "n"), *((label, text, "3") for text, label in rows)])
        data = buffer.getvalue()
    assert read_pairs(write_file(path, data)) == [(text.strip(), label.strip()) for text, label in rows]


@given(words=st.lists(st.tuples(TEXT, LABEL), max_size=9))
def test_words_and_labels_come_in_two_lists(
    words: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    row = {"tokens": [word for word, _ in words], "labels": [label for _, label in words]}
    path = tmp_path_factory.mktemp("words") / "a.jsonl"
    path.write_text(json.dumps(row))
    expected = Example(tuple(word.strip() for word, _ in words), tuple(label.strip() for _, label in words))
    assert list(LabelFile(path=path, over="tokens").examples()) == [expected]
    named_fields = LabelFile(path=path, over="tokens", text_field="tokens", label_field="labels")
    assert list(named_fields.examples()) == [expected]
    path.write_text(json.dumps({"text": row["tokens"], "label": row["labels"]}))
    assert list(LabelFile(path=path, over="tokens").examples()) == [expected]


def test_labels_become_text(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": label} for label in ("x ", 3, 0, -1, True, False, "true")]
    file = write_file(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, rows)))
    assert [label for _, label in read_pairs(file)] == ["x", "3", "0", "-1", "true", "false", "true"]


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    assert read_pairs(write_file(tmp_path / "a.csv", b"\xef\xbb\xbftext,label\na,x\n")) == [("a", "x")]
    (tmp_path / "b.csv").write_bytes("text,label\nsüß,ö\n".encode("utf-16"))
    assert read_pairs(LabelFile(path=tmp_path / "b.csv", encoding="utf-16")) == [("süß", "ö")]


def test_quoted_newlines_and_empty_lines(tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.csv", 'text,label\n"a\n\n""b"", c",x\n\n , y \nd,z')
    assert read_pairs(file) == [('a\n\n"b", c', "x"), ("", "y"), ("d", "z")]
    assert [item.texts for item in read_examples(file)] == [('a\n\n"b", c',), ("d",)]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b"}', "line 2 has no field 'label'; known: text"),
        ("a.jsonl", '{"txt": "a", "label": "x"}', r"line 1 has no field 'text'.*\(rename it, or set data.text_field\)"),
        ("a.jsonl", '{"text": "a", "label": null}', "line 1 has nothing as its 'label'; a label is text, .*write one"),
        ("a.jsonl", '\n{"text": "a", "label": ["x"]}', r"line 2 has \[\"x\"\] as its 'label'"),
        ("a.jsonl", '{"text": "a", "label": 1.5}', "line 1 has 1.5 as its 'label'"),
        ("a.jsonl", '{"text": "a", "label": {"x": 1}}', "as its 'label'"),
        ("a.jsonl", '{"text": "a", "label": " "}', "as its 'label'; .* or remove the line"),
        ("a.jsonl", '{"text": null, "label": "x"}', "line 1: the field 'text' is not text"),
        ("a.jsonl", '{"text": "a", "label": "\\ud800"}', "half a surrogate"),
        ("a.jsonl", "[1]", r'not a JSON object; write \{"text": ..., "label": ...\}'),
        ("a.csv", "text,lable\na,x", "line 1, the header, has no column 'label'; did you mean 'lable'"),
        ("a.csv", "text,label,text\na,x,b", "has 'text' more than once"),
        ("a.csv", "text,label\na,x\nb,c,y", "line 3 has 3 fields but the header has 2; .*quote fields"),
        ("a.csv", 'text,label\n"a\nb",x\nc,', "line 4 has nothing as its 'label'"),
        ("a.csv", 'text,label\n"a" b,x', r"line 2 is not CSV \(.*double the quotes within them, or use .jsonl"),
        ("a.tsv", 'text\tlabel\n"a\nb"\tx', "line 2 has 1 fields but the header has 2; .*quotes are text in TSV"),
        ("a.csv", "text,label\ra,x\rb,y", "is not CSV"),
        ("a.csv", "text,label\n" + "a" * 200_000 + ",x", r"field larger than field limit .*or use \.jsonl"),
        ("a.csv.gz", "text,label\na,", "line 2 has nothing"),
        ("a.txt", "a", r"has none of the suffixes of labeled texts, .jsonl, .csv, .tsv; write one JSON object"),
    ],
)
def test_errors_name_their_line(name: str, data: str, words: str, tmp_path: Path) -> None:
    file = write_file(tmp_path / name, data)
    with pytest.raises(UserError, match=words) as error:
        list(file.examples())
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tokens": ["a", "b"], "labels": ["x"]}, "line 1 has 2 items in 'tokens' and 1 in 'labels'; label each word"),
        ({"tokens": "a b", "labels": ["x"]}, "'tokens' and 'labels' must be two lists"),
        ({"tokens": ["a", 3], "labels": ["x", "y"]}, "line 1: word 2: the field 'tokens' is not text"),
        ({"tokens": ["a"], "labels": [None]}, "line 1 has nothing as its 'labels'"),
        ({"words": ["a"], "labels": ["x"]}, "line 1 has no field 'tokens'; known: labels, words"),
    ],
)
def test_words_that_do_not_match_their_labels(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=words):
        list(LabelFile(path=tmp_path / "a.jsonl", over="tokens").examples())


def test_missing_and_empty_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"two lists, which only JSONL can contain; write"):
        list(LabelFile(path=write_file(tmp_path / "a.csv", "text,label\na,x").path, over="tokens").examples())
    with pytest.raises(UserError, match=r"no such file or folder: .*did you mean 'a\.csv'"):
        list(LabelFile(path=tmp_path / "b.csv").examples())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.jsonl").write_text("{}")
    with pytest.raises(UserError, match="is a folder; use one file"):
        list(LabelFile(path=tmp_path / "folder").examples())
    for content in ("", "text,label\n", "text,label\n ,x\n"):
        with pytest.raises(UserError, match="has no labeled text; use a file that contains some"):
            list(read_examples(write_file(tmp_path / "c.csv", content)))


def test_hash_depends_on_texts_and_labels(tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.csv", "text,label\na,x\n")
    first = file.hash()
    assert write_file(tmp_path / "a.csv", "text,label\na,y\n").hash() != first
    assert file.size() is None
    x_texts, y_texts = (LabelTexts(name="n", items=(Example(("a",), (label,)),)) for label in "xy")
    assert x_texts.hash() != y_texts.hash()
    assert x_texts.size() == 1


def test_unknown_names_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match="no file or dataset of labeled texts is called 'docstrings'; did you mean 'python-do"
    ):
        read_label_examples(LabelsSpec(source="docstrings"), "train")
    with pytest.raises(UserError, match="no such file or folder: python-docstrings"):
        read_label_examples(LabelsSpec(source="./python-docstrings"), "train")
    with pytest.raises(UserError, match=r"python-docstrings labels texts, not words; set data\.over to texts"):
        read_label_examples(LabelsSpec(source="python-docstrings", over="tokens"), "train")

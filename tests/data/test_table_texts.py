"""Texts and pairs in the columns of CSV and TSV files, by the names of the columns."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import LabelsSpec, PairFiles, summarize_data
from tercet.data.datasets.recognize import recognize
from tercet.data.examples.labels import LabelFile
from tercet.data.sources.documents import DocumentFiles
from tercet.data.sources.tables import SPREADSHEET_ERRORS

CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\r\0", exclude_categories=["Cs"]), max_size=12)


def table(path: Path, rows: list[list[str]]) -> Path:
    lines = io.StringIO()
    if path.suffix == ".tsv":
        lines.writelines("\t".join(row) + "\n" for row in rows)
    else:
        csv.writer(lines, lineterminator="\n").writerows(rows)
    path.write_text(lines.getvalue(), encoding="utf-8")
    return path


@pytest.mark.slow
@given(texts=st.lists(CELLS, min_size=1, max_size=6), suffix=st.sampled_from([".csv", ".tsv"]))
def test_each_row_is_the_document_that_it_is_in_jsonl(
    texts: list[str], suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    if suffix == ".tsv":
        texts = [re.sub(r"[\t\n]", " ", text) for text in texts]
    assume(SPREADSHEET_ERRORS.isdisjoint(text.strip() for text in texts))  # which are rejected
    path = table(folder / f"a{suffix}", [["id", "body"], *(["1", text] for text in texts)])
    jsonl = folder / "a.jsonl"
    jsonl.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    table_files, json_files = (DocumentFiles(root=file, text_field="body") for file in (path, jsonl))
    if any(texts):
        assert list(table_files.pieces()) == list(json_files.pieces())
        assert [piece.text for piece in table_files.pieces()] == [text for text in texts if text]
    else:
        with pytest.raises(UserError, match="is empty"):
            list(table_files.pieces())


def test_code_keeps_its_indentation(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [["text"], ["    return 1\n"], ["\tpass "]])
    assert [piece.text for piece in DocumentFiles(root=path).pieces()] == ["    return 1\n", "\tpass "]


def test_quotes_are_text_in_tsv_with_and_without_a_header(tmp_path: Path) -> None:
    pairs = [(f"Sentence {n} stands here.", f"Satz {n} steht hier.") for n in range(40)]
    pairs[10], pairs[14] = ('"I am going home now.', "Ich gehe jetzt heim."), ('And so are you."', "Und du auch.")
    rows = [list(pair) for pair in pairs]
    assert list(PairFiles(source=table(tmp_path / "bare.tsv", rows)).examples()) == pairs
    assert list(PairFiles(source=table(tmp_path / "named.tsv", [["source", "target"], *rows])).examples()) == pairs
    label_path = table(tmp_path / "labels.tsv", [["text", "label"], *rows])
    assert [example.texts[0] for example in LabelFile(path=label_path).examples()] == [source for source, _ in pairs]
    documents = DocumentFiles(root=table(tmp_path / "texts.tsv", [["text"], *(row[:1] for row in rows)]))
    assert [piece.text for piece in documents.pieces()] == [source for source, _ in pairs]


def test_quotes_of_csv_in_tsv_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\r\n"two\r\nlines"\tx\r\n')
    with pytest.raises(UserError, match=r"a.tsv line 2 has 1 fields .*quotes are text in TSV .*use .csv or .jsonl"):
        list(LabelFile(path=path).examples())


def test_a_folder_has_tables_among_its_files(tmp_path: Path) -> None:
    table(tmp_path / "b.csv", [["text"], ["from a table"]])
    (tmp_path / "a.txt").write_text("from a file")
    files = DocumentFiles(root=tmp_path)
    assert [piece.text for piece in files.pieces()] == ["from a file", "from a table"]
    assert files.size() is None


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            "id,txt",
            r"did you mean 'txt'\? \(rename it, or set data.text_field \(--text-field\)\); its columns: id, txt",
        ),
        ("a,b", r"has no column 'text'; known: a, b"),
    ],
)
def test_missing_column_lists_existing_columns(columns: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{columns}\n1,2\n")
    with pytest.raises(UserError, match=words) as error_info:
        list(DocumentFiles(root=path).pieces())
    assert "\n" not in str(error_info.value)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_pairs_by_the_names_of_their_columns(suffix: str, tmp_path: Path) -> None:
    rows = [["id", "target", "source"], ["1", "zwei, drei", "two, three "], ["2", "", "four"]]
    assert list(PairFiles(source=table(tmp_path / f"a{suffix}", rows)).examples()) == [
        ("two, three", "zwei, drei"), ("four", ""),
    ]  # fmt: skip
    named_columns = table(tmp_path / f"b{suffix}", [["de", "en"], ["zwei", "two"]])
    assert list(PairFiles(source=named_columns, source_field="en", target_field="de").examples()) == [("two", "zwei")]


def test_a_tsv_without_a_header_is_pairs_from_its_first_line_on(tmp_path: Path) -> None:
    path = table(tmp_path / "a.tsv", [["source", "Quelle"], ["two", "zwei"]])
    assert list(PairFiles(source=path).examples()) == [("source", "Quelle"), ("two", "zwei")]
    quoted_path = tmp_path / "b.tsv"
    quoted_path.write_text('"a\tb"\n')  # without a header, quotes are text
    assert list(PairFiles(source=quoted_path).examples()) == [('"a', 'b"')]


def test_a_csv_of_pairs_without_their_columns(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [["de", "en"], ["zwei", "two"]])
    with pytest.raises(
        UserError, match=r"no column 'source'; known: de, en \(rename it, or set data.source_language\)"
    ):
        list(PairFiles(source=path).examples())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("start", ["", "sep=;\n", "\n"])
def test_export_of_a_spreadsheet_program_is_read(start: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'{start}text;label\n"süß; und";3,5\nsauer, salzig;1\n', encoding=encoding, newline="\r\n")
    assert [piece.text for piece in DocumentFiles(root=path).pieces()] == ["süß; und", "sauer, salzig"]
    assert [example.labels for example in LabelFile(path=path).examples()] == [("3,5",), ("1",)]
    spec = recognize(str(path))
    assert isinstance(spec, LabelsSpec)
    summary = summarize_data(spec)
    assert (summary.count, summary.invalid) == (2, 0)


def test_header_with_a_comma_has_no_other_separator(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [["text", "labels a;b;c"], ["x;y", "z"]])
    assert [piece.text for piece in DocumentFiles(root=path).pieces()] == ["x;y"]
    path.write_text("text\tlabel\nx, y\tz\n")
    assert [piece.text for piece in DocumentFiles(root=path).pieces()] == ["x, y"]


ERROR_CSV = "id,text,label\n#N/A,good,1\n2,bad,0\n3,{cell},1\n4,odd,0\n5,{cell},1\n6,fine,#n/a\n"


@pytest.mark.parametrize("cell", [*sorted(SPREADSHEET_ERRORS), " #REF! "])
def test_error_of_a_formula_in_a_used_column_is_rejected_with_place_and_count(cell: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(ERROR_CSV.format(cell=cell))
    with pytest.raises(UserError) as error_info:
        list(DocumentFiles(root=path).pieces())
    assert str(error_info.value) == (
        f"{path} line 4: the column 'text' has {cell.strip()}, the error of a formula (2 rows have such errors); "
        "correct the spreadsheet, or remove these rows"
    )
    with pytest.raises(UserError, match=r"line 4: the column 'text' has"):
        list(LabelFile(path=path).examples())
    labels = LabelFile(path=path, text_field="label", label_field="text")
    with pytest.raises(UserError, match=r"line 4: the column 'text' has"):
        list(labels.examples())


def test_error_of_a_formula_in_another_column_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(ERROR_CSV.format(cell="#hashtag"))
    assert [example.labels for example in LabelFile(path=path).examples()] == [
        ("1",),
        ("0",),
        ("1",),
        ("0",),
        ("1",),
        ("#n/a",),
    ]

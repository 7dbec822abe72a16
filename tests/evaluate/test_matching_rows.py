"""Rows are selected by a column, with their fields and line numbers unchanged."""

import csv
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data.sources.files import read_lines, read_objects
from tercet.data.sources.tables import read_table
from tercet.evaluate.errors.matching_rows import matching_rows

ROWS = [("news", 'one, "two"'), ("sport", "three"), ("news", "four\nlines"), ("", "five")]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".csv.gz"])
def test_matching_rows_keep_fields_and_line_numbers(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"data{suffix}"
    rows = [(domain, text.replace("\n", " ") if suffix == ".tsv" else text) for domain, text in ROWS]
    write_rows(path, rows)
    original = {location.rpartition(" ")[2]: row for location, row in read_rows(path)}
    with matching_rows(path, "domain=news", encoding="utf-8") as selected:
        found = {location.rpartition(" ")[2]: row for location, row in read_rows(selected)}
    assert found == {number: row for number, row in original.items() if row["domain"] == "news"}
    assert len(found) == 2
    assert not selected.exists()


def write_rows(path: Path, rows: list[tuple[str, str]]) -> None:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        if ".csv" in path.name:
            csv.writer(file, lineterminator="\n").writerows([("domain", "text"), *rows])
        elif ".tsv" in path.name:
            file.write("".join(f"{domain}\t{text}\n" for domain, text in [("domain", "text"), *rows]))
        else:
            file.write("".join(json.dumps({"domain": domain, "text": text}) + "\n" for domain, text in rows))


def read_rows(path: Path) -> list[tuple[str, dict[str, object]]]:
    if ".jsonl" in path.name:
        return list(read_objects(path, "utf-8", "strict", []))
    return [(location, dict(row)) for location, row in read_table(read_lines(path, "utf-8"), str(path), {})]


def test_rows_of_all_files_in_a_folder_match(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    for name in ("a.csv", "a.csv.gz", "b/c.jsonl", "b/d.tsv"):
        rows = [(domain, f"{name} {text}".replace("\n", " ")) for domain, text in ROWS]
        write_rows(folder / name, rows if name != "b/d.tsv" else rows[1:2])  # no match in the last file
    with matching_rows(folder, "domain=news", encoding="utf-8") as selected:
        paths = sorted(path for path in selected.rglob("*") if path.is_file())
        found = [row["text"] for path in paths for _, row in read_rows(path)]
    assert sorted(found) == sorted(
        f"{name} {text}" for name in ("a.csv", "a.csv.gz", "b/c.jsonl") for text in ('one, "two"', "four lines")
    )
    message = r"no row of .* has domain=rain; its values: news \(6\), sport \(4\)"
    with pytest.raises(UserError, match=message), matching_rows(folder, "domain=rain", encoding="utf-8"):
        pass
    (folder / "e.txt").write_text("text")
    message = r"e\.txt: rows can be selected only in"
    with pytest.raises(UserError, match=message), matching_rows(folder, "domain=news", encoding="utf-8"):
        pass


@given(rows=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.text("x,\"\n\t '\\é")), min_size=1, max_size=6))
def test_any_csv_is_copied_unchanged(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("rows") / "data.csv"
    write_rows(path, [("a", "first"), *rows])
    with matching_rows(path, "domain=a", encoding="utf-8") as selected:
        found = [row["text"] for _, row in read_rows(selected)]
    assert found == ["first", *(text for domain, text in rows if domain == "a")]


def test_values_of_json_are_compared_as_json_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"year": 2024, "text": "a"}\n{"year": "2025", "text": "b"}\n{"text": "c"}\n')
    for year, text in (("2024", "a"), ("2025", "b"), ("", "c")):
        with matching_rows(path, f"year={year}", encoding="utf-8") as selected:
            assert [row["text"] for _, row in read_rows(selected)] == [text]


@pytest.mark.parametrize(
    ("name", "condition", "message"),
    [
        ("data.csv", "domain", "is not a condition; write COLUMN=VALUE"),
        ("data.csv", "=news", "is not a condition"),
        ("data.csv", "domain=weather", r"has domain=weather; its values: news \(2\), sport \(1\), '' \(1\)"),
        ("data.csv", "domian=news", "has no column 'domian'; did you mean 'domain'"),
        ("data.txt", "domain=news", "only in .jsonl, .csv and .tsv files"),
        ("nosuch.csv", "domain=news", "only in .jsonl, .csv and .tsv files"),
    ],
)
def test_wrong_conditions_are_rejected(name: str, condition: str, message: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "data.csv", ROWS)
    (tmp_path / "data.txt").write_text("text\n")
    with pytest.raises(UserError, match=message), matching_rows(tmp_path / name, condition, encoding="utf-8"):
        pass

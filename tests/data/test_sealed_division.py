"""A sealed source is divided so that nothing is lost, and equal texts and groups are in one part."""

import csv
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data.sealing.items import read_items
from tercet.data.sealing.rows import read_rows
from tercet.data.sealing.seal_data import seal_data
from tercet.data.sealing.seal_record import Seal, hash_file, read_seal
from tercet.data.sealing.tail import REACH, cut_tail
from tercet.data.specs import TextSpec

ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
WORDS = st.text(st.sampled_from('ab é,"\n\t'), max_size=4)  # short, so that many texts are equal
ROWS = st.lists(st.tuples(WORDS, st.sampled_from(["x", "y", "z", "w"])), min_size=1, max_size=30)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def divide(source: str, count: int, **arguments: Any) -> tuple[Seal, Path] | None:
    """Seal a source in a new folder; return None if its items cannot be divided."""
    out = Path(f"sealed{len(list(Path().glob('sealed*')))}")
    try:
        return seal_data(source, out, fraction=None, count=count, **arguments), out
    except UserError as error:
        if "too few to seal" not in str(error) and "are all equal or of one group" not in str(error):
            raise
        return None


def check_parts(train: list[Any], test: list[Any], items: list[Any]) -> None:
    """Check that both parts together are the items, in their order."""
    assert Counter(train) + Counter(test) == Counter(items)
    for part in (train, test):
        remaining = iter(items)
        assert all(item in remaining for item in part)  # searches forward only


@pytest.mark.slow
@ONE_FOLDER
@given(rows=ROWS, count=st.integers(1, 10), grouped=st.booleans())
def test_each_object_is_in_one_part_with_equal_texts_and_its_group(
    rows: list[tuple[str, str]], count: int, grouped: bool
) -> None:
    lines = [json.dumps({"id": number, "text": text, "author": author}) for number, (text, author) in enumerate(rows)]
    Path("rows.jsonl").write_text("\n\n".join(lines))
    divided = divide(
        "rows.jsonl", count, settings={"text_field": "text", **({"group_field": "author"} if grouped else {})}
    )
    if divided is None:
        return
    seal, out = divided
    train, test = (
        [line for line in (out / f"{part}.jsonl").read_text().split("\n") if line] for part in ("train", "test")
    )
    check_parts(train, test, lines)
    assert (seal.train.items, seal.test.items) == (len(train), len(test))
    train_rows, test_rows = (list(map(json.loads, part)) for part in (train, test))
    assert test_rows
    assert all(row["text"].strip() for row in test_rows)
    assert not {row["text"] for row in train_rows} & {row["text"] for row in test_rows}
    if grouped:
        filled = (row["author"] for row in train_rows if row["text"].strip())
        assert not {*filled} & {row["author"] for row in test_rows}


def test_equal_texts_of_different_groups_join_them() -> None:
    rows = [{"text": f"text {number % 20}", "author": f"author {number}"} for number in range(40)]
    rows += [{"text": f"own {number}", "author": f"author {number}"} for number in range(40)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal_data("rows.jsonl", "sealed", count=20, settings={"group_field": "author"})
    train, test = (
        list(map(json.loads, Path(f"sealed/{part}.jsonl").read_text().splitlines())) for part in ("train", "test")
    )
    assert len(test) == 20
    for key in ("text", "author"):
        assert not {row[key] for row in train} & {row[key] for row in test}


@pytest.mark.slow
@ONE_FOLDER
@given(rows=ROWS, count=st.integers(1, 10), suffix=st.sampled_from(["csv", "tsv"]))
def test_rows_of_tables_keep_their_text_and_order(rows: list[tuple[str, str]], count: int, suffix: str) -> None:
    if suffix == "csv":
        with Path("rows.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    else:
        rows = [(text.replace("\t", " ").replace("\n", " "), label) for text, label in rows]
        Path("rows.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *rows]))
    divided = divide(f"rows.{suffix}", count)
    if divided is None:
        return
    seal, out = divided
    assert seal.kind == "labels"
    header, *original = read_rows(Path(f"rows.{suffix}"), "utf-8")
    parts = [list(read_rows(out / f"{part}.{suffix}", "utf-8")) for part in ("train", "test")]
    assert [part[0] for part in parts] == [header, header]
    check_parts(parts[0][1:], parts[1][1:], original)


@pytest.mark.slow
@ONE_FOLDER
@given(
    pairs=st.lists(st.tuples(st.sampled_from(["a", "b", " ", "c d"]), st.sampled_from("xyz")), min_size=2, max_size=20)
)
def test_parallel_files_stay_parallel_and_equal_sources_together(pairs: list[tuple[str, str]]) -> None:
    for name, side in (("all.de", 0), ("all.en", 1)):
        Path(name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    divided = divide("all.de", 1, target="all.en")
    if divided is None:
        return
    _, out = divided
    train, test = (
        list(zip(*((out / f"{part}.{name}").read_text().split("\n")[:-1] for name in ("de", "en")), strict=True))
        for part in ("train", "test")
    )
    check_parts(train, test, pairs)
    assert not {source for source, _ in train} & {source for source, _ in test}


@pytest.mark.slow
@given(
    lines=st.lists(st.sampled_from(["", " ", "\r", "one line", "another é", "x"]), min_size=1, max_size=60),
    fraction=st.floats(0.02, 0.98),
)
def test_running_text_is_cut_at_a_line_end_near_the_fraction(lines: list[str], fraction: float) -> None:
    text = "\n".join(lines)
    places = [place for place in range(1, len(text)) if text[place - 1] == "\n"]
    valid = [place for place in places if text[:place].strip() and text[place:].strip()]
    if not valid:
        with pytest.raises(UserError, match="has no two lines with text"):
            cut_tail(text, fraction, name="text")
        return
    cut, exact = cut_tail(text, fraction, name="text"), round(len(text) * (1 - fraction))
    assert cut in valid
    nearest = min(abs(place - exact) for place in valid)
    assert abs(cut - exact) <= max(nearest, REACH * len(text) * min(fraction, 1 - fraction) + 1)


def test_the_parts_of_a_running_text_are_the_text() -> None:
    text = "\n".join("" if number % 7 == 0 else f"line {number} é" for number in range(1, 300))
    Path("book.txt").write_bytes(text.encode("utf-16"))
    seal = seal_data("book.txt", "sealed", fraction=0.2, settings={"encoding": "utf-16"})
    train, test = (Path(f"sealed/{part}.txt").read_text() for part in ("train", "test"))
    assert train + test == text
    assert train.endswith("\n\n")
    assert test.strip() == test
    assert 0.18 < len(test) / len(text) < 0.22
    assert (seal.division, seal.unit, seal.test.items) == ("tail", "characters", len(test))


def read_texts(path: Path, **reading: Any) -> list[str]:
    return [item.content for item in read_items(TextSpec(source=str(path), **reading))]


@pytest.mark.parametrize("unit", ["line", "blank_line"])
def test_documents_of_a_text_file_are_drawn(unit: Any) -> None:
    texts = [f"document {number % 40}" + ("" if unit == "line" else "\nline 2") for number in range(50)]
    with gzip.open("all.txt.gz", "wt") as file:
        file.write("\n\n".join(texts))
    seal = seal_data("all.txt.gz", "sealed", fraction=0.3, settings={"documents": unit})
    train, test = (read_texts(Path(f"sealed/{part}.txt"), documents=unit) for part in ("train", "test"))
    check_parts(train, test, texts)
    assert not {*train} & {*test}
    assert 10 <= len(test) <= 15
    assert seal.reading == {"documents": unit}
    assert seal.to_dict()["fraction"] == 0.3


def test_documents_of_a_folder_are_written_as_objects() -> None:
    Path("texts").mkdir()
    texts = [f'text "{number}"\n é' for number in range(9)]
    for number, text in enumerate(texts):
        Path(f"texts/{number}.txt").write_text(text)
    seal_data("texts", "sealed", count=3)
    train, test = (read_texts(Path(f"sealed/{part}.jsonl")) for part in ("train", "test"))
    check_parts(train, test, texts)
    assert len(test) == 3


def test_other_formats_keep_their_records() -> None:
    Path("all.fa").write_text("".join(f">s{number} family=a\nACGT\n{'A' * (number + 1)}\n\n" for number in range(8)))
    chats = [{"prompt": f"question {number % 5}", "response": f"answer {number}"} for number in range(10)]
    Path("chats.json").write_text(json.dumps(chats))
    Path("pairs.tsv").write_text("".join(f"source {number}\ttarget \\ud800\n" for number in range(8)))
    for source, kind, suffix in (
        ("all.fa", "text", ".fa"), ("chats.json", "conversations", ".jsonl"), ("pairs.tsv", "pairs", ".tsv"),
    ):  # fmt: skip
        out = Path(f"sealed_{kind}")
        assert seal_data(source, out, count=2).kind == kind
        rows = [list(read_rows(out / f"{part}{suffix}", "utf-8", has_header=False)) for part in ("train", "test")]
        original = list(read_rows(Path(source), "utf-8", has_header=False))
        check_parts(rows[0][1:], rows[1][1:], original[1:])
        assert len(rows[1]) == 3


def test_named_text_is_divided_and_the_record_has_the_hashes() -> None:
    seal = seal_data("python-docs", "sealed", fraction=0.2, calls=3)
    assert read_seal(Path("sealed")) == seal
    assert (seal.kind, seal.unit, seal.allowed_calls, seal.calls) == ("text", "documents", 3, ())
    for part in (seal.train, seal.test):
        ((name, value),) = part.files.items()
        assert hash_file(Path("sealed") / name) == value
        assert part.bytes == (Path("sealed") / name).stat().st_size
        assert part.items == len(read_texts(Path("sealed") / name))


@pytest.mark.parametrize(
    ("source", "arguments", "words"),
    [
        ("nosuch.txt", {}, "no such file or folder: nosuch.txt"),
        ("numbers", {}, "numbers is a named dataset with fixed parts; pass a file"),
        ("animals", {}, "animals has no two lines with text"),
        ("all.txt", {"count": 2}, "all.txt is one running text, which has no documents to count; pass a fraction"),
        ("all.txt", {"fraction": 1.5}, "fraction=1.5 must be"),
        ("all.txt", {"fraction": 0.1, "count": 1}, "exclude each other"),
        ("all.txt", {"calls": 0}, "calls=0 must be"),
        ("all.txt", {"settings": {"docments": "line"}}, "unknown key 'docments'; did you mean 'documents'"),
        (
            "all.txt",
            {"settings": {"documents": "line"}, "count": 2},
            "all.txt has 2 documents, too few to seal 2 of them",
        ),
        ("equal.jsonl", {}, "the documents of equal.jsonl are all equal or of one group"),
        ("ids.jsonl", {}, "ids.jsonl contains token ids"),
    ],
)
def test_data_that_cannot_be_divided_is_rejected(source: str, arguments: dict[str, Any], words: str) -> None:
    Path("all.txt").write_text("one\ntwo\n")
    Path("equal.jsonl").write_text('{"text": "a"}\n' * 30)
    Path("ids.jsonl").write_text('{"text": [1, 2]}\n' * 30)
    with pytest.raises(UserError) as error:
        seal_data(source, "sealed", **arguments)
    assert words in str(error.value)
    assert not Path("sealed").exists()


def test_a_sealed_folder_is_not_written_again() -> None:
    Path("all.txt").write_text("one\ntwo\nthree\n")
    seal_data("all.txt", "sealed")
    with pytest.raises(UserError, match="sealed is not empty, and data is sealed only once; choose a new folder"):
        seal_data("all.txt", "sealed")

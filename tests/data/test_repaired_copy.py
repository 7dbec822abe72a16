"""The repaired copy of data: no fixed finding remains, a second repair changes nothing, and other fields are kept."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import ConversationsSpec, LabelsSpec, PairsSpec, TextSpec, check_data
from tercet.data.check.fix import DataRepair
from tercet.data.datasets.recognize import recognize

Spec = TextSpec | PairsSpec | LabelsSpec | ConversationsSpec


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))


def repair(spec: Spec | str, out: str) -> dict[str, int]:
    """Write the copy, check that a second repair copies it byte for byte, and return the numbers of changes."""
    spec = recognize(spec) if isinstance(spec, str) else spec
    changes = DataRepair(spec, Path(out)).write().changes
    if isinstance(spec, PairsSpec) and spec.target is not None:
        names = [str(Path(out, Path(name).name)) for name in (str(spec.source), spec.target)]
        again: Any = PairsSpec(source=names[0], target=names[1])
    else:
        again = recognize(out) if not isinstance(spec, TextSpec) else TextSpec(source=out, documents=spec.documents)
    second = f"again-{out}"
    assert DataRepair(again, Path(second)).write().changes == {}
    for path in [Path(out)] if Path(out).is_file() else [path for path in Path(out).rglob("*") if path.is_file()]:
        other = Path(second) / path.relative_to(out) if Path(out).is_dir() else Path(second)
        assert other.read_bytes() == path.read_bytes()
    return changes


def write_rows(name: str, rows: list[dict[str, object]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_rows(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(name).read_text().split("\n")[:-1]]


def test_a_text_file() -> None:
    Path("a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\x00\rthree  \n\ncafe\xcc\x81")
    assert repair("a.txt", "b.txt") == {"control_characters": 1, "encoding": 1, "line_ends": 2, "unicode_nfc": 1}
    assert Path("b.txt").read_bytes() == "one\ntwo\nthree  \n\ncafé\n".encode()


def test_a_clean_file_is_copied_byte_for_byte() -> None:
    contents = {
        "a.txt": "“Quotes” &amp; ﬁ stay\n\n\n so\tdo tabs",
        "a.csv": 'id;text\r\n1;"a, b"\r\n\r\n2;c\r\n',
        "a.jsonl": '{"text" : "caf\\u00e9", "n": 1.0}\n\n{"n": 1e2, "text": "b"}',
        "a.json": '[ {"text": "a"},\n {"text": "b"} ]',
        "a.tsv": 'say "hi\tsag "hi\n',
    }
    for name, content in contents.items():
        Path(name).write_bytes(content.encode())
        assert repair(name, f"b{Path(name).suffix}") == {}
        assert Path(f"b{Path(name).suffix}").read_bytes() == content.encode()
    Path("c.txt.gz").write_bytes(gzip.compress(b"a\n", mtime=7))
    assert repair("c.txt.gz", "d.txt.gz") == {}
    assert Path("d.txt.gz").read_bytes() == Path("c.txt.gz").read_bytes()


def test_documents_in_a_text_file() -> None:
    Path("a.txt").write_text("a b\r\n\n\na b\rc\nd\n\nc\n\nd\na b\nc\n", newline="")
    lines = TextSpec(source="a.txt", documents="line")
    assert repair(lines, "lines.txt") == {"duplicates": 5, "line_ends": 2}
    assert Path("lines.txt").read_text() == "a b\nc\nd\n"
    blocks = TextSpec(source="a.txt", documents="blank_line")
    Path("a.txt").write_text("a\nb\n\n\x00\n\na\nb\n\n\nc\n")
    assert repair(blocks, "blocks.txt") == {"control_characters": 1, "duplicates": 1}
    assert Path("blocks.txt").read_text() == "a\nb\n\nc\n"


def test_rows_keep_their_other_fields() -> None:
    rows: list[dict[str, object]] = [
        {"id": 1, "text": "one\r\n", "label": "x\r", "more": {"text": "\x00", "n": [1.5, None]}, "half": "\ud800"},
        {"id": 2, "text": "one\n", "label": "x\r"},
        {"id": 3, "text": "one\n", "label": "y"},
        {"id": 4, "text": "\ufeff", "label": "x"},
    ]
    write_rows("a.jsonl", rows)
    assert repair("a.jsonl", "b.jsonl") == {"control_characters": 1, "duplicates": 1, "empty": 1, "line_ends": 1}
    assert read_rows("b.jsonl") == [{**rows[0], "text": "one\n"}, rows[2]]
    with open("a.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text", "note", "label"], ["a\x00", 'so, "q"\r', "x"], ["b\r\nc", "", "y"]])
    assert repair("a.csv", "b.csv") == {"control_characters": 1, "line_ends": 1}
    with open("b.csv", newline="") as file:
        assert [*csv.reader(file)] == [["text", "note", "label"], ["a", 'so, "q"\r', "x"], ["b\nc", "", "y"]]


def test_pairs() -> None:
    Path("a.tsv").write_text("one\x00\tein\rs\n\none\teins\n two\tzwei\none\tein s\nthree\t\n", newline="")
    assert repair("a.tsv", "b.tsv") == {"control_characters": 1, "duplicates": 1, "empty": 1, "line_ends": 1}
    assert Path("b.tsv").read_text() == "one\tein s\none\teins\n two\tzwei\n"
    rows: list[dict[str, object]] = [{"source": "a\x00", "target": "b", "n": "\x00"}, {"source": "a ", "target": "b"}]
    write_rows("a.jsonl", rows)
    assert repair("a.jsonl", "b.jsonl") == {"control_characters": 1, "duplicates": 1}
    assert read_rows("b.jsonl") == [{"source": "a", "target": "b", "n": "\x00"}]


def test_two_files_stay_aligned() -> None:
    Path("a.de").write_text("eins\r\n\nzwei\rdrei\neins\nvier\n", newline="")
    with gzip.open("a.en.gz", "wb") as file:
        file.write(b"one\nempty\ntwo three\n one\nfour")
    assert repair(PairsSpec(source="a.de", target="a.en.gz"), "out") == {"duplicates": 1, "empty": 1, "line_ends": 2}
    assert Path("out/a.de").read_text() == "eins\nzwei drei\nvier\n"
    assert gzip.decompress(Path("out/a.en.gz").read_bytes()) == b"one\ntwo three\nfour\n"
    for language in ("de", "en"):
        Path(language).mkdir()
        Path(language, "train.txt").write_text(f"{language}\n")
    DataRepair(PairsSpec(source="de/train.txt", target="en/train.txt"), Path("both")).write()
    assert Path("both/en/train.txt").read_text() == "en\n"


def test_conversations() -> None:
    def talk(question: str, answer: str) -> dict[str, object]:
        roles = {"user": question, "assistant": answer}
        return {"messages": [{"role": role, "content": text} for role, text in roles.items()], "id": "\r"}

    write_rows("a.jsonl", [talk("a\x00", "b"), talk("a", "b"), talk("a", ""), talk("a", "c\r\n")])
    assert repair("a.jsonl", "b.jsonl") == {"control_characters": 1, "duplicates": 1, "empty": 1, "line_ends": 1}
    assert read_rows("b.jsonl") == [talk("a", "b"), talk("a", "c\n")]
    Path("a.csv").write_text("prompt,response,n\na,b,1\na,b,2\na,,3\n")
    assert repair("a.csv", "b.csv") == {"duplicates": 1, "empty": 1}
    assert Path("b.csv").read_text() == "prompt,response,n\na,b,1\n"


def test_a_folder() -> None:
    Path("in/sub").mkdir(parents=True)
    files = {"a.txt": "one\r\n", "sub/b.md": "one\n", "sub/c.txt": " \n", "d.csv": "text\nx\nx\n", "e.png": "?"}
    for name, content in files.items():
        Path("in", name).write_text(content, newline="")
    assert repair(TextSpec(source="in"), "out") == {"duplicates": 2, "empty": 1, "line_ends": 1}
    copies = {str(path.relative_to("out")): path.read_text() for path in Path("out").rglob("*") if path.is_file()}
    assert copies == {"a.txt": "one\n", "d.csv": "text\nx\n"}


def test_another_encoding_becomes_utf8() -> None:
    Path("a.txt").write_text("déjà vu\n", encoding="latin-1")
    with pytest.raises(UserError, match="pass the encoding"):
        check_data("a.txt", fix="b.txt")
    assert not Path("b.txt").exists()
    assert repair(TextSpec(source="a.txt", encoding="latin-1"), "b.txt") == {"encoding": 1}
    assert Path("b.txt").read_text(encoding="utf-8") == "déjà vu\n"
    Path("w.csv").write_text("text\nüber\n", encoding="utf-16")
    assert repair(TextSpec(source="w.csv"), "v.csv") == {"encoding": 1}


@pytest.mark.slow
@settings(max_examples=10)
@given(texts=st.lists(st.text('aé\u0301\r\n \x00\ufeff,"\tÃ©', max_size=6), min_size=1, max_size=6))
def test_no_fixed_finding_remains(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("files")
    with (folder / "a.csv").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
            [["text"], ["first"], *zip(texts, strict=True)]
        )
    check = check_data(folder / "a.csv", fix=folder / "b.csv")
    again = check_data(folder / "b.csv", fix=folder / "c.csv")
    assert check.repaired is not None
    assert again.repaired is not None
    assert again.repaired.changes == {}
    assert not [finding.name for finding in again.findings if finding.is_fixed]
    assert (folder / "c.csv").read_bytes() == (folder / "b.csv").read_bytes()
    found = {finding.name for finding in check.findings if finding.is_fixed}
    assert found <= {*check.repaired.changes}  # repaired texts may be duplicates or empty


@pytest.mark.parametrize(
    ("source", "out", "message"),
    [
        ("a.txt", "there.txt", "--fix there.txt exists already; pass the name of a new file"),
        ("a.txt", "full", "--fix full exists already"),
        ("a.txt", "b.csv", "must end with .txt, as a.txt does"),
        ("a.txt", "b.txt.gz", "must end with .txt"),
        ("a.txt", "none/b.txt", "no such folder: none"),
        ("full", "full/inner", "is inside of full"),
        ("full", "there.txt", "exists already"),
        ("animals", "b.txt", "animals is a named dataset"),
        ("a.fa", "b.fa", "a.fa is something else"),
        ("ids.jsonl", "b.jsonl", "ids.jsonl is something else"),
        ("missing.txt", "b.txt", "no such file or folder: missing.txt"),
    ],
)
def test_copies_that_cannot_be_written(source: str, out: str, message: str) -> None:
    for name, content in {"a.txt": "a", "there.txt": "b", "a.fa": ">a\nACGT\n", "ids.jsonl": "[1]\n"}.items():
        Path(name).write_text(content)
    Path("full").mkdir()
    Path("full/a.txt").write_text("a")
    with pytest.raises(UserError, match=message):
        check_data(source, fix=out)
    assert Path("there.txt").read_text() == "b"
    assert not Path(out).exists() or out in ("there.txt", "full")

"""`tercet data extract` on the command line: the report, the exit code, and errors of one line."""

import json
from pathlib import Path

import pytest

from tercet.cli.main import main
from tercet.data.extraction.readers import PACKAGES

for module in PACKAGES:
    pytest.importorskip(module, reason=f"{module} is not installed; pip install 'tercet[documents]'")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    Path("in").mkdir()
    Path("in/a.html").write_text("<p>one<script>x</script>")
    Path("in/b.txt").write_text("zwei süße".encode("cp1252").decode("latin-1"), encoding="latin-1")
    Path("in/c.png").write_bytes(b"")
    return tmp_path


def test_report_has_all_parts_and_the_output_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "extract", "in", "--out", "out.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    facts = {" ".join(line.split()) for line in out.splitlines()}
    assert {"documents 2", "characters 12", "files 1 HTML, 1 text", "not read 1 file of other formats: 1 .png",
            "left out 1 scripts and styles", "tercet train out.jsonl"} <= facts  # fmt: skip
    assert main(["data", "out.jsonl"]) == 0
    assert "documents   2" in capsys.readouterr().out


def test_damaged_file_has_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in/d.pdf").write_bytes(b"%PDF-1.4 damaged")
    assert main(["data", "extract", "in", "--out", "out.jsonl", "--json"]) == 2
    out, err = capsys.readouterr()
    assert [line.split(" (")[0] for line in err.splitlines()] == [
        "tercet: in/d.pdf is not a readable PDF file",
        "tercet: 1 file could not be read completely; everything else is in out.jsonl",
    ]
    report = json.loads(out)
    assert report["count"] == 2
    assert [file["path"] for file in report["unreadable"]] == ["in/d.pdf"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("in", "pass --out texts.jsonl"),
        ("in --out out.txt", "out.txt must end with .jsonl"),
        ("nosuch --out out.jsonl", "no such file or folder: nosuch"),
        ("in --out out.jsonl --pairs", "no pairs were extracted from in; files of other formats"),
        ("in --out out.jsonl --pairs --split", "--pairs and --split exclude each other"),
        ("in --out out.jsonl --source-language de", "require --pairs"),
        ("in --out out.jsonl --encoding nosuch", "unknown encoding 'nosuch'"),
        ("in/c.png --out out.jsonl", "no documents were extracted from in/c.png; files of other formats: 1 .png"),
    ],
)
def test_mistake_has_one_line_and_writes_nothing(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "extract", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert not Path("out.jsonl").exists()
    assert not Path("out.txt").exists()

"""`tercet errors` writes a page without faults for each kind of model, and the report contains the same errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from read_page import read_page

import tercet
from tercet.cli.main import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("text", ["tokens", "texts"]),
        ("masked", ["tokens", "texts"]),
        ("pairs", ["pairs", "tokens"]),
        ("labels", ["confusions", "mistakes"]),
        ("numbers", ["numbers"]),
        pytest.param("sets", ["confusions", "mistakes"], marks=pytest.mark.exhaustive),
        pytest.param("chat", ["tokens", "texts"], marks=pytest.mark.exhaustive),
    ],
)
def test_page_contains_the_printed_errors(
    name: str, sections: list[str], runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, path = str(runs[name]), tmp_path / "page.html"
    capsys.readouterr()
    assert main(["errors", run, "--top", "2", "--html", str(path), "--json"]) == 0
    errors = json.loads(capsys.readouterr().out)
    page = read_page(path)
    assert [attributes["id"] for tag, attributes in page.tags if tag == "section"] == sections
    assert str(tmp_path) not in page.html
    for listed in errors["worst"]:
        for text in ("text", "translation", "source"):
            assert str(listed.get(text, "")).strip() in page.text
    assert main(["errors", run, "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert out.strip()
    facts = out.strip().splitlines()[-1]
    assert facts[1:] in page.words[""]


def test_shades_follow_the_losses(runs: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert main(["errors", str(runs["text"]), "--html", str(path), "--json"]) == 0
    spans = [attributes for tag, attributes in read_page(path).tags if tag == "span" and "title" in attributes]
    shades = [(float(span["title"].split()[0]), int(span["class"].removeprefix("shade"))) for span in spans]
    assert len(shades) > 20
    assert len({shade for _, shade in shades}) > 1
    by_loss = [shade for _, shade in sorted(shades)]
    assert by_loss == sorted(by_loss)


def test_report_of_an_evaluated_run_contains_its_errors(runs: Any, tmp_path: Path) -> None:
    errors: Any = tercet.load(runs["labels"]).find_errors(top=5)
    page = read_page(tercet.report(runs["labels"], tmp_path / "with.html", evaluate=True))
    assert errors.worst[0].text in page.words["errors"]
    assert "errors" not in read_page(tercet.report(runs["labels"], tmp_path / "without.html")).words


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--source", "a", "--target", "b"], "source does not apply to"),
        (["--rank-by", "chrf"], "chrF ranks translations"),
        (["--html", "FOLDER"], "is a folder; pass a file name"),
        (["--data", "nosuch.txt"], "no such file or folder: nosuch.txt"),
        (["--min-length", "100000"], "no text has a length in the range"),
        (["--documents", "line"], "--documents requires --data or --source"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(
    flags: list[str], message: str, runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(runs["text"])
    capsys.readouterr()
    assert main(["errors", run, *(str(tmp_path) if flag == "FOLDER" else flag for flag in flags)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1

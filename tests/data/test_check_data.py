"""Findings of planted data have the right counts, and clean data has none."""

import json
import random
from pathlib import Path
from string import ascii_lowercase

import pytest

import tercet
from tercet.config import UserError
from tercet.data import DataCheck, Documents, Finding, PairsSpec, TextSpec, check_data
from tercet.data.check import findings
from tercet.data.check.text_repair import has_ftfy
from tercet.data.sources import documents

DRAW = random.Random(5)
LINES = [" ".join("".join(DRAW.choices(ascii_lowercase, k=5)) for _ in range(12)) for _ in range(400)]

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(findings, "SMALL_BYTES", 1000)


def check_lines(lines: list[str], **options: str) -> DataCheck:
    Path("lines.txt").write_text("".join(f"{line}\n" for line in lines), newline="")
    return check_data(TextSpec(source="lines.txt", documents="line", validation=Documents()), **options)


def find(check: DataCheck) -> dict[str, Finding]:
    return {finding.name: finding for finding in check.findings}


def test_clean_text_has_no_findings() -> None:
    check = check_lines(LINES)
    assert check.findings == ()
    assert not check.has_problem
    assert (check.unit, check.count) == ("documents", 400)
    assert check.n_bytes == sum(map(len, LINES))
    assert check.has_ftfy == has_ftfy()


def test_duplicates_and_near_duplicates() -> None:
    copies = LINES[:30]
    near = [f"{line.upper()} Amber" for line in LINES[100:200]]
    check = check_lines([*LINES, *copies, *near])
    findings = find(check)
    assert {*findings} <= {"duplicates", "near_duplicates", "leaks"}
    assert (findings["duplicates"].count, findings["duplicates"].severity) == (30, "problem")
    assert findings["duplicates"].share == 30 / 530
    assert findings["near_duplicates"].count == 100
    assert findings["near_duplicates"].severity == "problem"
    assert findings["leaks"].count > 0
    assert check.has_problem
    few = find(check_lines([*LINES, LINES[0]]))
    assert few["duplicates"].severity == "note"


def test_a_separate_validation_part() -> None:
    Path("valid.txt").write_text("".join(f"{line}\n" for line in LINES[:50]))
    leaks = find(check_lines(LINES[40:], validation="valid.txt"))["leaks"]
    assert (leaks.count, leaks.share, leaks.severity) == (10, 0.2, "problem")


@pytest.mark.parametrize(
    ("name", "changed", "count"),
    [
        ("replacement_characters", "What \ufffd was\ufffd", 2),
        ("control_characters", "nul\x00 and\x1b mark\ufeff", 3),
        ("unicode_nfc", "cafe\u0301 e\u0301", 1),
        ("markup", "<p class='a'>Salt &amp; pepper</p> 1 < 2 & list<int>" + "<br>" * 40, 20 - 7 + 5 + 4 + 160),
        pytest.param("mojibake", "CafÃ© fermÃ© Ã\xa0 midi", 1, marks=pytest.mark.skipif(not has_ftfy(), reason="ftfy")),
    ],
)
def test_faults_of_characters(name: str, changed: str, count: int) -> None:
    [finding] = check_lines([*LINES, changed]).findings
    assert (finding.name, finding.count) == (name, count)


def test_line_ends_in_a_document() -> None:
    text = "".join(f"{line}\r\n" if n < 100 else f"{line}\n" for n, line in enumerate(LINES))
    Path("text.md").write_text(text, newline="")
    [finding] = check_data("text.md").findings
    assert (finding.name, finding.count, finding.share) == ("line_ends", 100, 100 / 400)
    assert finding.is_fixed


def test_repeated_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    footer, header = "All rights reserved by nobody.", "Page of the almanac of seas"
    text = "".join(f"{header}\n{line}\n\n  {footer}\nshort line\n" for line in LINES)
    Path("text.md").write_text(text)
    check = check_data("text.md")
    [finding] = check.findings
    assert finding.name == "repeated_lines"
    assert finding.count == 399 * (len(header) + len(footer))
    assert [(line.text, line.count) for line in check.repeated_lines] == [(header, 400), (footer, 400)]
    monkeypatch.setattr(documents, "PIECE", 64)
    assert check_data("text.md") == check


def test_repetitive_and_small_text() -> None:
    Path("text.md").write_text(" ".join(["the quick brown fox"] * 40))
    check = check_data("text.md")
    assert {*find(check)} == {"repetitive", "small"}
    assert find(check)["small"].count == check.n_bytes == 40 * 20 - 1
    assert check.bits_per_byte is not None
    assert check.bits_per_byte < 1


def test_labels_that_contradict_each_other() -> None:
    rows = [{"text": line, "label": "ab"[n % 2]} for n, line in enumerate(LINES)]
    rows += [{"text": LINES[0], "label": "b"}, {"text": LINES[0], "label": "a"}, {"text": " ", "label": "a"}]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = {name: finding.count for name, finding in find(check_data("a.jsonl")).items()}
    assert counts == {"conflicting_labels": 1, "duplicates": 1, "empty": 1}


def test_faults_of_reading() -> None:
    Path("bad.txt").write_bytes(b"so\nna\xefve caf\xe9\n")
    finding = find(check_data("bad.txt"))["invalid_utf8"]
    assert (finding.count, finding.severity) == (2, "problem")
    assert "line 2" in finding.found
    Path("bad.fa").write_text(">a\nACGT\nAC1T\n>b\nACGT\n")
    findings = find(check_data("bad.fa"))
    assert findings["malformed_records"].severity == "problem"
    assert "control_characters" not in findings
    Path("same.jsonl").write_text('{"text": "a", "label": "x"}\n' * 4)
    assert find(check_data("same.jsonl"))["no_division"].severity == "problem"


def test_ids_and_two_files() -> None:
    Path("ids.jsonl").write_text("[1, 2]\n[1, 2]\n[3]\n")
    check = check_data("ids.jsonl")
    assert {*find(check)} == {"duplicates"}
    assert not find(check)["duplicates"].is_fixed
    assert "--fix OUT" not in find(check)["duplicates"].remedy
    assert check.bits_per_byte is None
    Path("a.de").write_text("eins\nzwei\n\n")
    Path("a.en").write_text("one\ntwo\nthree\n")
    for check in (check_data("a.de", target="a.en"), check_data(PairsSpec(source="a.de", target="a.en"))):
        assert (check.unit, check.count) == ("pairs", 2)
        assert find(check)["empty"].count == 1
    with pytest.raises(UserError, match="only pairs have two files"):
        check_data("ids.jsonl", validation="ids.jsonl", validation_target="a.en")


def test_large_text_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.data.summary.split_summary.MAX_BYTES", 1000)
    assert find(check_lines(LINES))["not_compared"].severity == "note"
    assert not check_lines(LINES, similarity=0.8).findings


def test_public_name() -> None:
    assert tercet.check_data is check_data

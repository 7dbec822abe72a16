"""Text stays readable: phrases that are hard to read are rare in every kind of text, and the README is short."""

import re
from pathlib import Path

import pytest
from lint import ROOT, Text, hits, python_texts, rates, read_markers

LIMIT = 1.5  # markers per 1,000 words
USER_TEXT = ("src", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
DEVELOPER_TEXT = ("tests", "benchmarks", "examples", ".github", "Makefile", "mkdocs.yml")


@pytest.mark.slow
def test_phrases_that_are_hard_to_read_are_rare() -> None:
    found = rates([ROOT / path for path in USER_TEXT])
    assert {"docstrings", "comments", "messages", "docs", "changelog", "JavaScript", "CSS", "C++", "YAML"} <= set(found)
    assert {kind: rate for kind, rate in found.items() if rate > LIMIT} == {}


@pytest.mark.exhaustive
def test_phrases_that_are_hard_to_read_are_rare_in_tests_and_benchmarks() -> None:
    found = rates([ROOT / path for path in DEVELOPER_TEXT])
    found.pop("messages")  # strings of tests are mostly data
    assert {"docstrings", "comments", "docs", "C++", "YAML"} <= set(found)
    assert {kind: rate for kind, rate in found.items() if rate > LIMIT} == {}


def marked(kind: str, words: str) -> list[str]:
    return [marker.what for marker, _ in hits(Text(kind, Path("x"), 1, words), read_markers())]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("ValueError: where the shapes differ.", "where for if or when"),
        ("The cache is made anew.", "anew"),
        ("The header says how long it is.", "a thing that says or tells"),
        ("The run goes\n    on from there.", "go on"),
        ("0.3 tokens a step", "N tokens a step"),
        ("it is unknown; give a folder", "a remedy with give"),
    ],
)
def test_a_marker_is_found_across_line_breaks(words: str, what: str) -> None:
    assert what in marked("messages", words)


def test_a_summary_without_a_head_counts_in_docstrings_only() -> None:
    assert marked("docstrings", "Whether it fits.") == ["a summary without a head"]
    assert marked("comments", "Whether it fits.") == []


def test_plain_text_has_no_marker() -> None:
    text = "Return the logits of each token, and reject unknown keys. Raises ValueError if shapes differ; pass --force."
    assert marked("docstrings", text) == []


def test_strings_docstrings_and_comments_are_read_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text('"""One."""\n\nx = 1  # two\ny = f"three {x} four"\nz = ["five six", "seven"]\n')
    assert [(text.kind, text.line, text.words) for text in python_texts(path)] == [
        ("docstrings", 1, "One."),
        ("messages", 4, "three  x  four"),
        ("messages", 5, "five six"),
        ("comments", 3, " two"),
    ]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_contributing_is_short_and_names_targets_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert len(text.splitlines()) <= 45
    assert set(re.findall(r"\bmake ([\w-]+)", text)) <= targets

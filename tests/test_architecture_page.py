"""The architecture page: files and names of docs/explanation/architecture.md exist at the stated places."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tercet"
DOCS = ROOT / "docs"
PAGE = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
LIBRARIES = (DOCS / "dev" / "decisions" / "libraries.md").read_text(encoding="utf-8")
KERNELS = (DOCS / "explanation" / "kernels.md").read_text(encoding="utf-8")
ITEM = re.compile(r"^\d+\. .*(?:\n +.*)*", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
WALKS = ("From text to loss", "From prompt to screen")


def section(title: str, page: str = PAGE) -> str:
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, f"no section {title!r}"
    return match[1]


def table(title: str, page: str = PAGE) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in section(title, page).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def defined_names(path: Path) -> set[str]:
    """Return the functions and classes of a file, and its methods as `Class.method`."""
    names = set[str]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def row_errors(row: str) -> Iterator[str]:
    """Yield the errors of a row: code that ends in .py must be a file, other code a name in the preceding file."""
    names: set[str] | None = None
    for code in CODE.findall(row):
        path = PACKAGE / code
        if code.endswith(".py"):
            names = defined_names(path) if path.is_file() else None
            if names is None:
                yield f"{code} is not there"
        elif names is not None and code not in names:
            yield f"{code} is not defined in the file before it"


@pytest.mark.parametrize("title", WALKS)
def test_steps_of_walks_have_existing_files_and_names(title: str) -> None:
    steps = ITEM.findall(section(title))
    assert len(steps) > 5
    for step in steps:
        assert len(CODE.findall(step)) >= 2, f"no file and function: {step}"
        assert list(row_errors(step)) == [], step


def test_ten_questions_name_existing_files() -> None:
    rows = table("Ten questions")
    assert len(rows) == 10
    for question, file, names in rows:
        assert file, question
        assert names, question
        assert list(row_errors(f"{file} {names}")) == [], question


def test_handwritten_parts_have_existing_files_and_names() -> None:
    for piece, files, _, verdict, reason in table("Verdicts", LIBRARIES):
        assert verdict, piece
        assert reason, piece
        missing = [file for file in CODE.findall(files) if not (PACKAGE / file).is_file()]
        assert missing == [], piece


def test_each_kernel_has_a_source() -> None:
    rows = table("Where they apply", KERNELS)
    assert len(rows) > 8
    files = [CODE.findall(file)[0] for _, file, _ in rows]
    assert [file for file in files if not (PACKAGE / "kernel" / "cpp" / file).is_file()] == []


def test_architecture_is_short() -> None:
    assert len(PAGE.split()) <= 1500


def test_missing_file_or_name_is_detected() -> None:
    assert list(row_errors("1. `nn/gone.py` `x`, `nn/cache.py` `StackCache.grow`, `gone`")) == [
        "nn/gone.py is not there",
        "gone is not defined in the file before it",
    ]

"""The source does not rely on the encoding of the system, which is not UTF-8 on Windows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
ENCODING_INDEX = {"read_text": 0, "write_text": 1}  # position of the argument


def calls_without_encoding(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls that open a text file with the encoding of the system, which is not UTF-8 on Windows."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if name in ENCODING_INDEX:
            if len(node.args) <= ENCODING_INDEX[name]:
                yield node.lineno
        elif isinstance(node.func, ast.Name) and name == "open":
            modes = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
            if not any("b" in getattr(mode, "value", "b") for mode in modes):  # a mode in a variable is not checked
                yield node.lineno


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open(path)", 1),
        ("open(path, 'w')", 1),
        ("open(path, mode='a')", 1),
        ("path.read_text()", 1),
        ("path.write_text(text)", 1),
        ("open(path, 'rb')", 0),
        ("open(path, mode)", 0),
        ("open(path, encoding='utf-8')", 0),
        ("path.read_text(encoding='ascii')", 0),
        ("path.write_text(text, 'utf-8')", 0),
    ],
)
def test_search_finds_calls_without_encoding(code: str, expected: int) -> None:
    assert len([*calls_without_encoding(ast.parse(code))]) == expected


@pytest.mark.slow
def test_text_files_have_an_explicit_encoding() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        for line in calls_without_encoding(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []

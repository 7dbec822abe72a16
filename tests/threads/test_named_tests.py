"""Public threads and known pitfalls each have a test, which `threads.yaml` and `traps.yaml` name."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
TESTS = HERE.parent


def read_rows(name: str) -> Any:
    return yaml.safe_load((HERE / name).read_text(encoding="utf-8"))


THREADS: list[dict[str, Any]] = read_rows("threads.yaml")
TRAPS: dict[str, dict[str, Any]] = {
    f"{topic} {number}": trap for topic, traps in read_rows("traps.yaml").items() for number, trap in traps.items()
}


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return names of all functions of a test file; empty if there is no such file."""
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def find_missing(tests: list[str]) -> list[str]:
    """Return the named tests that do not exist."""
    parts = [(test, *test.split("::")) for test in tests]
    return [test for test, file, name in parts if not name.startswith("test_") or name not in functions_of(file)]


@pytest.mark.parametrize("row", THREADS, ids=[row["threads"][0] for row in THREADS])
def test_thread_has_its_right_value_asserted(row: dict[str, Any]) -> None:
    assert set(row) == {"threads", "fault", "right", "outcome", "tests"}
    assert row["outcome"] in ("failed", "held")
    assert row["fault"]
    assert row["right"]
    assert row["tests"]
    assert find_missing(row["tests"]) == []


@pytest.mark.parametrize("name", TRAPS)
def test_trap_has_its_right_value_asserted(name: str) -> None:
    assert set(TRAPS[name]) == {"right", "tests"}
    assert TRAPS[name]["right"]
    assert TRAPS[name]["tests"]
    assert find_missing(TRAPS[name]["tests"]) == []


def test_no_thread_is_listed_twice() -> None:
    named = [thread for row in THREADS for thread in row["threads"]]
    assert sorted(named) == sorted(set(named))
    assert len(THREADS) >= 46
    assert len(TRAPS) >= 60


def test_a_missing_test_is_detected() -> None:
    here = "threads/test_named_tests.py::"
    tests = [
        f"{here}test_no_thread_is_listed_twice",
        f"{here}test_of_nothing",
        f"{here}find_missing",
        "gone.py::test_x",
    ]
    assert find_missing(tests) == tests[1:]

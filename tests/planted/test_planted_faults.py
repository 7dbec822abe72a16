"""The lists of planted faults match the source. `make faults` plants all of them, which takes up to an hour."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from candidate_tests import changed_lines
from fault_list import ROOT, SOURCE, read_faults

FAULTS = read_faults()


def test_every_fault_has_one_place_and_its_tests_exist() -> None:
    texts = {fault.file: (SOURCE / fault.file).read_text(encoding="utf-8") for fault in FAULTS}
    assert [fault.what for fault in FAULTS if texts[fault.file].count(fault.right) != 1] == []
    assert [fault.what for fault in FAULTS if fault.right == fault.wrong] == []
    named = {fault.tests.split(" ")[0] for fault in FAULTS if fault.tests}
    assert [file for file in sorted(named) if not (ROOT / "tests" / file).is_file()] == []


@pytest.mark.slow
def test_selection_of_each_fault_contains_a_test(collected_tests: list[str]) -> None:
    """Without this test, a renamed test would leave a fault without tests."""
    selections = {tuple(fault.tests.split(" -k ")) for fault in FAULTS if " -k " in fault.tests}
    files = {f"tests/{file}" for file, _ in selections}
    test_ids = list(collected_tests)
    if missing := sorted(files - {test_id.partition("::")[0] for test_id in test_ids}):  # not a run of all tests
        pytest_command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts="]
        collection = subprocess.run([*pytest_command, *missing], cwd=ROOT, capture_output=True, text=True, check=True)
        test_ids += collection.stdout.splitlines()
    tests: dict[str, list[str]] = {}
    for test_id in test_ids:
        tests.setdefault(test_id.partition("::")[0], []).append(test_id.lower())
    empty = [
        f"{file} -k {selection}"
        for file, selection in sorted(selections)
        if not any(_is_selected(selection, test_id) for test_id in tests[f"tests/{file}"])
    ]
    assert empty == []


def _is_selected(selection: str, test_id: str) -> bool:
    """Evaluate the expression of `-k`: a word is true if the ID contains it."""
    words = [word.strip().lower() for word in re.split(r"(\band\b|\bor\b|\bnot\b|[()])", selection)]
    operators = {"and", "or", "not", "(", ")", ""}
    return bool(eval(" ".join(word if word in operators else str(word in test_id) for word in words)))


def test_fault_names_are_unique() -> None:
    names = [fault.what for fault in FAULTS]
    assert sorted(set(names)) == sorted(names)


def test_a_fault_that_coverage_cannot_trace_names_its_tests() -> None:
    assert [fault.what for fault in FAULTS if Path(fault.file).suffix != ".py" and not fault.tests] == []


def test_planting_changes_one_place(tmp_path: Path) -> None:
    fault = FAULTS[0]
    target = tmp_path / fault.file
    target.parent.mkdir(parents=True)
    right = (SOURCE / fault.file).read_text(encoding="utf-8")
    target.write_text(right, encoding="utf-8")
    fault.plant(tmp_path)
    assert target.read_text(encoding="utf-8") == right.replace(fault.right, fault.wrong) != right
    with pytest.raises(ValueError, match="occurs 0 times"):
        fault.plant(tmp_path)


SOURCE_TEXT = """\
LIMIT = 3

def cut(
    rows,
    limit=LIMIT,
):
    if limit > (
        2
    ):
        rows = rows[:limit]
    return rows
"""


@pytest.mark.parametrize(
    ("first", "last", "lines"),
    [
        (1, 1, {1}),
        (5, 5, set(range(3, 12))),  # a default affects all callers of the function
        (8, 8, {7, 8, 9}),  # the header of a compound statement without its body
        (10, 10, {10}),
        (10, 11, {10, 11}),
    ],
)
def test_changed_lines_are_those_of_the_changed_statements(first: int, last: int, lines: set[int]) -> None:
    assert changed_lines(SOURCE_TEXT, first, last) == lines

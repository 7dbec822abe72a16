"""Tests of a folder run in one process, except in folders with a large part of all tests."""

from folder_units import units_of


def test_small_folders_are_units() -> None:
    large = {
        f"tests/nn/test_{name}.py::test_{n}[a/b::c]": f"tests/nn/test_{name}.py" for name in "ab" for n in range(9)
    }
    small = {f"tests/cli/test_{name}.py::test_one": "tests/cli" for name in "ab"}
    single = {f"tests/test_docs.py::{name}": "tests/test_docs.py" for name in ("test_one", "TestAll::test_two")}
    units = {**large, **small, **single}
    assert units_of(units) == units


def test_files_of_the_only_folder_are_units() -> None:
    """All processes take part in the tests of one folder."""
    units = {f"tests/cli/test_{name}.py::test_one": f"tests/cli/test_{name}.py" for name in "abc"}
    assert units_of(units) == units

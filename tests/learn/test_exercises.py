"""The exercises: reference solutions pass, common mistakes are named, and sheets contain no answers."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from common_mistakes import MISTAKES

from tercet.config import UserError
from tercet.learn import SolutionCheck, exercises
from tercet.learn.compare import explain
from tercet.learn.exercises import find_exercise
from tercet.learn.runner import run_checks
from tercet.learn.sheet import sheet_text, write_sheet

SOLUTIONS = Path(__file__).parent / "solutions"
NUMBERS = [exercise.number for exercise in exercises()]
CASES = [
    pytest.param(number, *mistake, id=f"{number}-{index}")
    for number, mistakes in MISTAKES.items()
    for index, mistake in enumerate(mistakes)
]


def solution_text(number: int) -> str:
    return (SOLUTIONS / find_exercise(number).sheet).read_text()


def results(number: int, path: Path) -> list[SolutionCheck]:
    return [result for result in run_checks(number, path) if isinstance(result, SolutionCheck)]


def functions(text: str) -> dict[str, tuple[ast.FunctionDef, list[str]]]:
    """Return the functions and methods of a file by name, with the names of their arguments."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    return {node.name: (node, [argument.arg for argument in node.args.args]) for node in nodes}


@pytest.mark.parametrize("number", NUMBERS)
def test_the_reference_solution_passes(number: int) -> None:
    checks = results(number, SOLUTIONS / find_exercise(number).sheet)
    assert len(checks) >= 4
    assert [check for check in checks if not check.passed or check.problem] == []


@pytest.mark.parametrize(("number", "old", "new", "message"), CASES)
def test_a_common_mistake_is_named(number: int, old: str, new: str, message: str, tmp_path: Path) -> None:
    text = solution_text(number)
    assert old in text
    (tmp_path / "mistake.py").write_text(text.replace(old, new))
    problems = [check.problem for check in results(number, tmp_path / "mistake.py") if not check.passed]
    assert any(message in problem for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


def test_each_exercise_has_named_mistakes() -> None:
    assert list(MISTAKES) == NUMBERS
    assert min(map(len, MISTAKES.values())) >= 6


@pytest.mark.parametrize("number", NUMBERS)
def test_an_empty_sheet_fails_each_check_with_the_name_of_a_function(number: int, tmp_path: Path) -> None:
    path = write_sheet(number, tmp_path)
    checks = results(number, path)
    names = functions(path.read_text())
    assert not any(check.passed for check in checks)
    for check in checks:
        name, _, rest = check.problem.partition(" ")
        assert name in names
        assert rest.startswith("is not written yet; replace `raise NotImplementedError` (line ")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_sheet_contains_the_task_and_no_answer(number: int) -> None:
    exercise = find_exercise(number)
    text = sheet_text(number)
    docstring = ast.get_docstring(ast.parse(text)) or ""
    assert docstring.startswith(f"Exercise {number}: {exercise.title}.\n")
    assert f"`tercet learn check {number}`" in docstring
    asked, solved = functions(text), functions(solution_text(number))
    assert set(asked) <= set(solved)
    for name, (node, arguments) in asked.items():
        statements = [one for one in node.body if not isinstance(one, ast.Expr)]
        assert [ast.unparse(one) for one in statements] == ["raise NotImplementedError"]
        assert arguments == solved[name][1]
        assert name == "__init__" or ast.get_docstring(node)


def test_the_list_has_one_sheet_and_one_module_of_checks_per_exercise() -> None:
    package = Path(import_module("tercet.learn.sheets").__file__ or "").parent
    assert {path.name for path in package.glob("ex*.py")} == {exercise.sheet for exercise in exercises()}
    modules = {path.stem for path in package.with_name("checks").glob("*.py")} - {"__init__"}
    assert modules == {exercise.name for exercise in exercises()}
    for number in (0, 11, -1):
        with pytest.raises(UserError, match=r"unknown exercise: .*; the exercises have the numbers 1 to 10"):
            find_exercise(number)


def test_a_sheet_replaces_no_file(tmp_path: Path) -> None:
    path = write_sheet(3, tmp_path / "new")
    path.write_text("my answer")
    with pytest.raises(UserError, match=r"ex03_attention.py exists already"):
        write_sheet(3, tmp_path / "new")
    assert path.read_text() == "my answer"
    with pytest.raises(UserError, match="not a folder"):
        write_sheet(3, path)


def faulty_results() -> Iterator[tuple[object, str]]:
    expected = torch.arange(6.0).reshape(2, 3)
    yield None, "the function returns None"
    yield [1, 2], "must be a tensor of shape (2, 3), not list"
    yield expected.T, "has the shape (3, 2); it must be (2, 3)"
    yield expected.log() - expected.log(), "contains NaN"
    yield expected + torch.tensor([0, 0, 0.5]), "2.5 at [0, 2], not 2"
    yield expected + 2e-4, "differs from the reference"


@pytest.mark.parametrize(("result", "message"), [*faulty_results()])
def test_explain_describes_the_difference(result: object, message: str) -> None:
    expected = torch.arange(6.0).reshape(2, 3)
    assert message in (explain(result, expected) or "")
    assert explain(expected + 1e-8, expected) is None
    assert explain(expected.double(), expected, {"a mistake": expected.clone()}) is None

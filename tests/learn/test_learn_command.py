"""`tercet learn`: the list, the sheets, the exit codes of a check, and code that does not end."""

import json
import shutil
import time
from pathlib import Path

import pytest

from tercet.cli.main import main
from tercet.config import UserError
from tercet.learn import check_solution, exercises

SOLUTION = Path(__file__).parent / "solutions/ex01_byte_pairs.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_the_list_names_each_exercise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in range(1, 11)]
    assert all(len(line) <= 140 for line in lines)
    assert main(["learn", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["exercises"]
    assert [one["file"] for one in listed] == [exercise.sheet for exercise in exercises()]


def test_sheets_are_written_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "start", "3", "1", "3", "--to", "my course"]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n") == ["my course/ex03_attention.py", "my course/ex01_byte_pairs.py", ""]
    assert "tercet learn check 3 'my course'" in err
    assert "exists already" in error_of(["learn", "start", "1", "--to", "my course"], capsys)
    assert "unknown exercise: 11" in error_of(["learn", "start", "2", "11"], capsys)
    assert list(folder.glob("*.py")) == []
    assert main(["learn", "start", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": ["ex02_embeddings.py"]}


@pytest.mark.slow
def test_exit_codes_of_a_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "tercet learn start 1" in error_of(["learn", "check", "1"], capsys)
    assert main(["learn", "start", "1"]) == 0
    capsys.readouterr()
    assert main(["learn", "check", "1"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[1].startswith("FAIL  count_pairs counts")
    assert "count_pairs is not written yet" in out
    assert out.endswith("0 of 8 checks passed\n")
    shutil.copy(SOLUTION, "mine.py")
    assert main(["learn", "check", "1", "mine.py"]) == 0
    assert capsys.readouterr().out.endswith("8 of 8 checks passed\n")
    Path("mine.py").write_text(SOLUTION.read_text().replace("+= count", "+= 1"))
    assert main(["learn", "check", "1", "mine.py", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert not result["passed"]
    assert [check["name"] for check in result["checks"] if not check["passed"]][:1] == [
        "count_pairs counts the pairs of all occurrences of a word"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", r"mine.py line 1: invalid syntax"),
        ("x = 1 / 0\n", r"mine.py cannot be imported: ZeroDivisionError: division by zero \(line 1\)"),
        ("import nosuch\n", r"ModuleNotFoundError: No module named 'nosuch' \(line 1\)"),
        ("exit()\n", r"the code ends the program \(line 1\)"),
        ("import os\nos._exit(0)\n", r"ended with exit code 0 while it was imported"),
        ("\0", "not a Python file|null bytes"),
    ],
)
@pytest.mark.slow
def test_a_file_that_cannot_be_imported_is_an_error(
    text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(text)
    with pytest.raises(UserError, match=message):
        check_solution(1, "mine.py")


def test_paths_that_are_no_files_are_errors(folder: Path) -> None:
    for path, message in (("no.py", "no such file: no.py"), ("/dev/null", "not a Python file"), (".", "no such file")):
        with pytest.raises(UserError, match=message):
            check_solution(1, path)
    Path("large.py").write_text("#" * 1_000_001)
    with pytest.raises(UserError, match="at most 1 MB"):
        check_solution(1, "large.py")


@pytest.mark.slow
def test_an_endless_loop_is_stopped_and_other_results_remain(folder: Path) -> None:
    Path("mine.py").write_text(SOLUTION.read_text().replace("            i += 1\n", ""))
    start = time.monotonic()
    result = check_solution(1, "mine.py", timeout=4)
    assert time.monotonic() - start < 30
    assert [check.passed for check in result.checks] == [True] + [False] * 7
    assert result.checks[1].problem.startswith("the code did not finish within 4 s during this check")
    assert {check.problem for check in result.checks[2:]} == {"not run"}


@pytest.mark.slow
def test_code_that_ends_the_program_fails_one_check(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = "    print('debugging')\n    import os\n    os._exit(3)\n"
    Path("mine.py").write_text(SOLUTION.read_text().replace("    merged = list[str]()\n", lines))
    result = check_solution(1, "mine.py")
    assert "ended with exit code 3 during this check" in result.checks[1].problem
    Path("mine.py").write_text(SOLUTION.read_text().replace("    merged = list[str]()\n", "    exit()\n"))
    result = check_solution(1, "mine.py")
    assert result.checks[1].problem.startswith("the code ends the program (line ")
    assert result.checks[-1].name.startswith("encode")


@pytest.mark.slow
def test_output_of_the_code_goes_to_standard_error(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("random.py").write_text("raise ImportError('a file of the student replaces a module of Python')\n")
    Path("helper.py").write_text("NAME = 'debugging'\n")
    Path("mine.py").write_text("from helper import NAME\nprint(NAME)\n" + SOLUTION.read_text())
    assert main(["learn", "check", "1", "mine.py", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["passed"]
    assert "debugging" in err


@pytest.mark.slow
def test_a_check_with_tensors_runs_in_its_own_process(folder: Path) -> None:
    shutil.copy(SOLUTION.with_name("ex03_attention.py"), "ex03_attention.py")
    result = check_solution(3)
    assert (result.exercise, result.passed, result.file) == (3, True, "ex03_attention.py")

"""The table of exit codes contains the codes of the program, and each has the output that it describes."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tercet.cli import main as program
from tercet.config import UserError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"
CODES = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)]
RAISED: dict[int, list[BaseException]] = {
    1: [MemoryError(), RuntimeError("CUDA out of memory"), AssertionError("a bug")],
    2: [program.Mistake("a wrong flag"), UserError("a wrong file"), FileNotFoundError(2, "No such file", "text.txt")],
    129: [],  # only training: tests/training/test_interruption.py
    130: [KeyboardInterrupt()],
    141: [BrokenPipeError()],
    143: [],  # a separate process
}
LINES = {1: range(1, 99), 2: range(1, 2), 130: range(1, 3), 141: range(1)}  # number of lines on stderr


def test_the_table_has_all_codes() -> None:
    assert [0, *RAISED] == CODES
    numbers = signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM
    assert CODES[-4:] == [128 + number for number in numbers]


@pytest.mark.parametrize(("code", "error"), [(code, error) for code, errors in RAISED.items() for error in errors])
def test_an_error_has_the_code_of_the_table(
    code: int, error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: Any) -> int:
        raise error

    verb = SimpleNamespace(register=program._module("recipes").register, run=fail)
    monkeypatch.setattr(program, "_module", lambda name: verb)
    monkeypatch.setattr(program, "discard_output", lambda: None)
    assert program.main(["recipes"]) == code
    assert capsys.readouterr().err.count("\n") in LINES[code]


def test_success_and_a_command_line_with_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--version"]) == 0
    assert capsys.readouterr().err == ""
    assert program.main(["generate"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_sigterm_has_the_code_of_the_table() -> None:
    code = "from tercet.cli import main; main.main = lambda words: print(flush=True) or input(); main.entry()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.05)
    process.terminate()
    assert process.wait(30) == 143
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_python_exits_ends_the_program_without_output(number: signal.Signals) -> None:
    code = """
import atexit, time
from tercet.cli import main
atexit.register(lambda: (print("exiting", flush=True), time.sleep(60)))
main.main = lambda words: 0
main.entry()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "exiting\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (-number, "")  # a shell reports 128 + number

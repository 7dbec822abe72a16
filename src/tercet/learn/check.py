"""Checks of a student's code, which runs in another process with a time limit."""

import ast
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tercet.config import UserError
from tercet.learn.exercises import find_exercise
from tercet.learn.runner import SolutionCheck
from tercet.messages import describe_error

TIMEOUT = 60.0  # seconds for all checks and the import of PyTorch
MAX_BYTES = 1_000_000  # of a student's file


@dataclass(frozen=True, kw_only=True)
class CheckedSolution:
    """Results of the checks of a student's code.

    Attributes:
        exercise: Number of the exercise.
        title: Title of the exercise.
        file: Path of the checked file.
        passed: If True, all checks passed.
        checks: Results in order.
    """

    exercise: int
    title: str
    file: str
    passed: bool
    checks: tuple[SolutionCheck, ...]


def check_solution(number: int, path: Path | str | None = None, *, timeout: float = TIMEOUT) -> CheckedSolution:
    """Run a student's file and check it. The file's code is run with the rights of the current user.

    Args:
        number: Number of the exercise, from 1.
        path: File with the student's code, or a folder that contains it under the name of the sheet (default: the
            current folder).
        timeout: Seconds after which the code is stopped.

    Raises:
        UserError: If there is no exercise with this number, if the file cannot be read, is not valid Python or raises
            an exception when it is imported, or if Python cannot be started.
    """
    exercise = find_exercise(number)
    file = Path("." if path is None else path)
    if file.is_dir():
        file = file / exercise.sheet
        if not file.exists():
            raise UserError(f"no such file: {file}; write it with `tercet learn start {number}`, or pass your file")
    _check_syntax(file)
    checks = tuple(_run(number, file, timeout))
    return CheckedSolution(
        exercise=number, title=exercise.title, file=str(file), passed=all(check.passed for check in checks),
        checks=checks,
    )  # fmt: skip


def _check_syntax(file: Path) -> None:
    if not file.exists():
        raise UserError(f"no such file: {file}; pass the file with your code")
    if not file.is_file() or file.stat().st_size > MAX_BYTES:
        raise UserError(f"{file} is not a Python file of at most 1 MB; pass the file with your code")
    try:
        with tokenize.open(file) as opened:
            ast.parse(opened.read())
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; pass a file that can be read") from None
    except SyntaxError as error:
        line = "" if error.lineno is None else f" line {error.lineno}"
        raise UserError(f"{file}{line}: {error.msg}; correct the syntax") from None
    except (ValueError, RecursionError) as error:  # null bytes or invalid UTF-8
        raise UserError(f"{file}: not a Python file: {describe_error(error)}; pass the file with your code") from None


def _run(number: int, file: Path, timeout: float) -> Iterator[SolutionCheck]:
    """Yield the result of each check.

    Raises:
        UserError: If the file raises an exception when it is imported, or Python cannot be started.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        # -P: a module in the current folder must not replace one of Python's. Kernels are not compiled for a check.
        command = [sys.executable, "-P", "-m", "tercet.learn.runner", str(number), str(file.resolve()), str(results)]
        environment = {**os.environ, "TERCET_KERNEL": "off"}
        try:
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, env=environment) as process:
                reason = _wait(process, timeout)
        except OSError as error:
            raise UserError(f"cannot start {sys.executable}: {error.strerror}; check the installation") from None
        entries = _read(results)
    names: list[str] = next((entry["names"] for entry in entries if "names" in entry), [])
    if error := next((entry["error"] for entry in entries if "error" in entry), None):
        raise UserError(f"{file} cannot be imported: {error}; correct it and check again")
    if not names:
        raise UserError(f"the checks did not start: Python {reason}; pass a larger --timeout, or see the output above")
    finished = {entry["name"]: SolutionCheck(**entry) for entry in entries if "name" in entry}
    started = [entry["started"] for entry in entries if "started" in entry]
    if not started:
        raise UserError(f"{file} {reason} while it was imported; remove endless loops and exits outside of functions")
    for name in names:
        default = f"the code {reason} during this check; is there an endless loop?" if name in started else "not run"
        yield finished.get(name) or SolutionCheck(name=name, passed=False, problem=default)


def _wait(process: "subprocess.Popen[bytes]", timeout: float) -> str:
    """Wait for the process, stop it after `timeout` seconds, and return how it ended."""
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return f"did not finish within {timeout:g} s"
    finally:
        process.kill()  # also after Ctrl-C; it has no effect on a process that has ended
    return f"ended with exit code {code}"


def _read(results: Path) -> list[dict[str, Any]]:
    """Return the lines of the results; a process that was stopped may have left the last one incomplete."""
    entries = list[dict[str, Any]]()
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries

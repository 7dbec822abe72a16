"""The program that runs a student's code and its checks in a separate process.

    python -P -m tercet.learn.runner NUMBER FILE RESULTS

One JSON object per line is appended to RESULTS: the name of a check before it starts, then its result. The parent can
therefore report the check in which the process was stopped, or ended by itself.
"""

import json
import signal
import sys
import tokenize
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tercet.learn.exercises import find_exercise
from tercet.messages import shorten

MODULE = "solution"


@dataclass(frozen=True, kw_only=True)
class SolutionCheck:
    """Result of one check of a student's code.

    Attributes:
        name: Condition that the code must satisfy.
        passed: If True, it does.
        problem: One line about the mistake, empty if the check passed.
    """

    name: str
    passed: bool
    problem: str


class ArgumentChanged(Exception):
    """A function has changed one of its arguments in place, from which the reference is computed."""


class Guarded:
    """A student's module whose functions raise `ArgumentChanged` if they change a tensor argument in place."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return _guard(value) if isinstance(value, FunctionType) else value


def _guard(function: FunctionType) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any) -> Any:
        versions = [getattr(arg, "_version", 0) for arg in args]  # counts the changes of a tensor
        result = function(*args)
        for name, arg, version in zip(function.__code__.co_varnames, args, versions, strict=False):
            if getattr(arg, "_version", 0) != version:
                raise ArgumentChanged(
                    f"{function.__name__} changes its argument {name} in place; "
                    f"write {name} = {name} - ... instead of {name} -= ..."
                )
        return result

    return call


def load_solution(path: Path) -> ModuleType:
    """Run a student's file and return it as a module. Raises each exception of its code."""
    with tokenize.open(path) as file:  # decodes as Python does
        source = file.read()
    module = ModuleType(MODULE)
    module.__file__ = str(path)
    sys.modules[MODULE] = module  # in which dataclasses look annotations up
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def check_names(number: int) -> list[str]:
    """Return the names of the checks of an exercise."""
    return list(_checks(number))


def run_checks(number: int, path: Path) -> Iterator[str | SolutionCheck]:
    """Yield the name of each check before it is run, and then its result.

    Raises:
        Exception: If the file itself raises one, before the first check.
    """
    solution = Guarded(load_solution(path))
    for name, check in _checks(number).items():
        yield name
        try:
            problem = check(solution)
        except (Exception, SystemExit) as error:
            problem = describe_failure(error, path)
        yield SolutionCheck(name=name, passed=problem is None, problem=shorten(problem or ""))


def describe_failure(error: BaseException, path: Path) -> str:
    """Return one line about an exception of the student's code, with the line of the file in which it was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f" (line {frames[-1].lineno})" if frames else ""
    if isinstance(error, NotImplementedError) and frames:
        return f"{frames[-1].name} is not written yet; replace `raise NotImplementedError`{place}"
    if isinstance(error, ArgumentChanged):
        return str(error)
    if isinstance(error, SystemExit):
        return f"the code ends the program{place}; remove exit()"
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) and error.obj.__name__ == MODULE:
        return f"the file has no {error.name}; keep the names of the sheet"
    words = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if words else ''}{words}{place}"


def _checks(number: int) -> dict[str, Any]:
    return import_module(f"tercet.learn.checks.{find_exercise(number).name}").CHECKS


def main(number: str, file: str, results: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports Ctrl-C
    path = Path(file)
    sys.path.append(str(path.parent))  # last: a file such as random.py in this folder must not replace a module

    def write(result: dict[str, Any]) -> None:
        with open(results, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(result) + "\n")

    write({"names": check_names(int(number))})
    try:
        for result in run_checks(int(number), path):
            write({"started": result} if isinstance(result, str) else asdict(result))
    except (Exception, SystemExit) as error:
        write({"error": describe_failure(error, path)})


if __name__ == "__main__":
    main(*sys.argv[1:])

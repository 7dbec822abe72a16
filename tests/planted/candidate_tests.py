"""Select the tests that may catch a fault, from a recorded run that contains the executed lines of each test."""

import ast
import hashlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from coverage import CoverageData
from fault_list import ROOT, SOURCE, Fault

FIRST_STAGE, SECOND_STAGE = 60.0, 240.0  # seconds of tests in the recorded run


class RecordedRun:
    """One run of the whole suite: executed lines, time and result of each test."""

    def __init__(self, folder: Path, source: Path = SOURCE) -> None:
        self.source = source
        self.coverage = CoverageData(str(folder / "coverage"))
        self.coverage.read()
        self.files = {Path(path).relative_to(source).as_posix(): path for path in self.coverage.measured_files()}
        self.seconds: dict[str, float] = {}
        for case in ElementTree.parse(folder / "tests.xml").iter("testcase"):
            if len(case):  # failed or skipped tests prove nothing
                continue
            # JUnit's class name of tests/nn/test_block.py is tests.nn.test_block.
            file = case.attrib["classname"].replace(".", "/") + ".py"
            self.seconds[f"{file}::{case.attrib['name']}"] = float(case.attrib["time"])

    def stages(self, fault: Fault) -> Iterator[list[str]]:
        """Yield lists of tests, with the most likely to catch the fault first. A test is in at most one list.

        The first list has the tests that execute the changed statements. The second has tests that a fixture may
        connect with them: the rest of their files, and the tests of the package. Both are sorted by time, up to a
        limit.
        """
        package = f"tests/{fault.file.split('/')[0].removesuffix('.py')}/"
        executing = self._executing(fault)
        first = self._cheapest(executing, package, FIRST_STAGE)
        yield first
        files = {test.split("::")[0] for test in executing}
        related = [test for test in self.seconds if test.split("::")[0] in files or test.startswith(package)]
        yield self._cheapest(set(executing).union(related).difference(first), package, SECOND_STAGE)

    def _cheapest(self, tests: Iterable[str], package: str, budget: float) -> list[str]:
        chosen = []
        for test in sorted(tests, key=lambda test: (not test.startswith(package), self.seconds[test], test)):
            budget -= self.seconds[test]
            if budget < 0 and chosen:
                break
            chosen.append(test)
        return chosen

    def _executing(self, fault: Fault) -> list[str]:
        """Return the passing tests that execute a statement that the fault changes."""
        if fault.file not in self.files:
            return []
        text = (self.source / fault.file).read_text(encoding="utf-8")
        start = text.index(fault.right)
        first = text.count("\n", 0, start) + 1
        last = first + fault.right.rstrip("\n").count("\n")
        lines = changed_lines(text, first, last)
        by_line = self.coverage.contexts_by_lineno(self.files[fault.file])
        tests = {context.rpartition("|")[0] for line in lines for context in by_line.get(line, [])}
        return sorted(tests & self.seconds.keys())


def changed_lines(text: str, first: int, last: int) -> set[int]:
    """Return the lines whose execution shows a change of lines `first` to `last`.

    Those are the lines of the statements that overlap them. A compound statement counts with its header only. A
    function whose header changes counts with its body, since the header runs at import.
    """
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt):
            continue
        end = node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        header_end = body[0].lineno - 1 if isinstance(body, list) else end
        if max(node.lineno, first) <= min(max(header_end, node.lineno), last):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            lines.update(range(node.lineno, (end if is_function else max(header_end, node.lineno)) + 1))
    return lines


def record_run(folder: Path) -> RecordedRun:
    """Run the tests of `make test` under coverage into `folder`, unless it has a run of the same sources and tests."""
    digest = _digest([ROOT / "src", ROOT / "tests"])
    key = folder / "sources"
    if not key.is_file() or key.read_text() != digest:
        folder.mkdir(parents=True, exist_ok=True)
        key.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-n", str(os.cpu_count()), "--cov=tercet", "--cov-context=test"]
        settings = folder / "coveragerc"
        settings.write_text(f"[run]\ndata_file = {folder / 'coverage'}\n")
        command += [f"--cov-config={settings}", "--cov-report=", f"--junitxml={folder / 'tests.xml'}"]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code not in (0, 1):  # a failed test is left out, but a broken run is useless
            raise SystemExit(f"pytest ended with {code}: no tests were recorded")
        key.write_text(digest)
    return RecordedRun(folder)


def _digest(folders: list[Path]) -> str:
    names: dict[str, bytes] = defaultdict(bytes)
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".yaml":
                names[path.relative_to(ROOT).as_posix()] = hashlib.sha256(path.read_bytes()).digest()
    return hashlib.sha256(b"".join(name.encode() + names[name] for name in sorted(names))).hexdigest()

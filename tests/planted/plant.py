"""Plant each fault in a copy of the source and report the test that catches it.

    python tests/planted/plant.py                  # all; exit code 1 if a fault survives
    python tests/planted/plant.py rotary "min-p"   # those whose description, file or list contains one of these words

The first call records one run of the suite (`candidate_tests.py`); a fault then costs the seconds up to the first
test that fails. Every child is a fork that has imported the libraries, but not Tercet.
"""

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from candidate_tests import RecordedRun, record_run
from fault_list import ROOT, Fault, read_faults

LIBRARIES = ("pydantic", "pytorch_lightning", "sacrebleu", "tokenizers", "torch")
SECONDS_PER_TEST = 120


@dataclass(eq=False)  # pytest keeps its plugins in a set
class FirstFailure:
    """A pytest plugin that remembers the first failing test, and whether tests could be collected."""

    test: str = ""
    why: str = ""
    broken: str = ""
    passed: int = 0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken = report.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test, self.why = report.nodeid, str(report.longrepr).strip().rsplit("\n", 1)[-1][:200]
            if "from pytest-timeout" in str(report.longrepr):  # also caused by a busy machine
                self.test, self.broken = "", f"{report.nodeid} timed out"
        self.passed += report.passed and report.when == "call"


@dataclass
class Outcome:
    """The result of planting one fault."""

    what: str
    file: str
    verdict: str  # "caught", "survived", or "broken" if Tercet cannot even be imported with it
    test: str = ""
    why: str = ""
    tests_run: int = 0
    seconds: float = 0.0


def plant(fault: Fault, run: RecordedRun | None, folder: Path) -> Outcome:
    """Plant one fault and run candidate tests until one fails."""
    started = time.monotonic()
    shutil.copytree(ROOT / "src", folder / "src")  # with its bytecode; only the changed module is recompiled
    fault.plant(folder / "src" / "tercet")
    outcome = Outcome(fault.what, fault.file, "survived")
    for arguments in _stages(fault, run):
        found = _run_tests(arguments, folder)
        outcome.tests_run += found.passed
        if found.test or found.broken:
            outcome.verdict = "caught" if found.test else "broken"
            outcome.test, outcome.why = found.test or found.broken, found.why
            break
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome


def _stages(fault: Fault, run: RecordedRun | None) -> Iterator[list[str]]:
    if fault.tests:
        file, _, selection = fault.tests.partition(" -k ")
        yield [f"tests/{file}", *(["-k", selection] if selection else [])]
    if run is not None:
        yield from filter(None, run.stages(fault))


def _run_tests(arguments: list[str], folder: Path) -> FirstFailure:
    """Run pytest in a fork on the copy of the source in `folder`."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        with (folder / "output").open("a") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(ROOT)
        os.environ["PYTHONPATH"] = str(folder / "src")  # for processes that tests start
        sys.path.insert(0, str(folder / "src"))
        first, status = FirstFailure(), 1
        try:
            options = ["-x", "-q", "-p", "pytest_timeout", "-p", "no:cacheprovider", f"-otimeout={SECONDS_PER_TEST}"]
            code = pytest.main([*options, f"--basetemp={folder / 'tests'}", *arguments], plugins=[first])
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                first.broken = first.broken or f"pytest {code!r}: {' '.join(arguments)[:200]}"
            status = 0
        except BaseException:  # for example a resource that a failed test has not closed
            traceback.print_exc()
            status = 0 if first.test else 1
        finally:
            if status == 0:
                answer.write_text(json.dumps(asdict(first)))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if answer.is_file():
        return FirstFailure(**json.loads(answer.read_text()))
    if not os.WIFSIGNALED(status):
        raise RuntimeError((folder / "output").read_text())
    return FirstFailure(test=arguments[0], why=f"killed by {signal.Signals(os.WTERMSIG(status)).name}")


def _plant_in_turn(faults: list[Fault], run: RecordedRun | None, jobs: int) -> Iterator[Outcome]:
    """Yield the outcome of each fault, `jobs` of them at a time, in the order in which they end."""
    waiting, running = list(faults), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            fault, folder = waiting.pop(0), Path(tempfile.mkdtemp(prefix="fault-"))
            child = os.fork()
            if not child:
                try:
                    outcome = plant(fault, run, folder)
                except Exception as error:
                    outcome = Outcome(fault.what, fault.file, "broken", why=f"{type(error).__name__}: {error}")
                (folder / "outcome.json").write_text(json.dumps(asdict(outcome)))
                os._exit(0)
            running[child] = folder
        child, _ = os.wait()
        folder = running.pop(child)
        yield Outcome(**json.loads((folder / "outcome.json").read_text()))
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="plant only the faults that contain one of these words")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults planted at a time (default: CPUs)")
    parser.add_argument("--named", action="store_true", help="run only the tests that a fault names; record no run")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "faults", help="folder of the run and the report")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    faults = [
        fault
        for fault in read_faults()
        if not options.words or any(word in f"{fault.what} {fault.file}" for word in options.words)
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    # Kernels that are compiled from changed sources stay out of the user's cache.
    os.environ |= {"TERCET_CACHE": str(options.out / "cache"), "OMP_NUM_THREADS": "1"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    run = None if options.named else record_run(options.out)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # pytest would rewrite some of them before LIBRARIES import them
    recorded = time.monotonic()
    # Kernels are compiled before a test waits for them.
    subprocess.run([sys.executable, "-c", "from tercet.kernel import warm_up; warm_up()"], check=True)
    for library in LIBRARIES:
        importlib.import_module(library)
    outcomes = []
    for outcome in _plant_in_turn(faults, run, options.jobs):
        outcomes.append(outcome)
        ending = (
            f"{outcome.tests_run} tests pass" if outcome.verdict == "survived" else f"{outcome.test}  {outcome.why}"
        )
        print(f"{outcome.verdict:<8} {outcome.seconds:6.1f} s  {outcome.what} ({outcome.file})  {ending}", flush=True)
    (options.out / "report.json").write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    caught = sum(outcome.verdict == "caught" for outcome in outcomes)
    now = time.monotonic()
    print(f"{caught} of {len(faults)} faults caught, in {now - started:.0f} s ({recorded - started:.0f} to record)")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())

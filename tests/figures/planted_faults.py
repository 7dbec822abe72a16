"""Faults in figures, planted one at a time in a copy of the source: each must be noticed by the tests named above it.

python tests/figures/planted_faults.py            # all of planted_faults.yaml; exit code 1 where one is not noticed
python tests/figures/planted_faults.py 3 17 20    # those
"""

import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent


class Fault(NamedTuple):
    """In `file` of src/tercet `wrong` stands in the place of `right`, and `tests`, as pytest takes them, must fail."""

    tests: str
    what: str
    file: str
    right: str
    wrong: str


FAULTS = [
    Fault(tests, **fault)
    for tests, faults in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items()
    for fault in faults
]


def notices(fault: Fault, folder: Path) -> bool:
    """Whether a test fails on a copy of the source with this fault; in a fork, which has the libraries already."""
    copy = folder / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "tercet" / fault.file
    text = path.read_text(encoding="utf-8")
    assert text.count(fault.right) == 1, fault
    path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    file, _, selection = fault.tests.partition(" -k ")
    arguments = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}", str(ROOT / "tests" / file)]
    child = os.fork()
    if not child:
        sys.path.insert(0, str(copy))
        with (folder / "output").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os._exit(pytest.main([*arguments, *(["-k", selection] if selection else [])]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == pytest.ExitCode.TESTS_FAILED


def main(numbers: list[int]) -> int:
    os.environ |= {"TERCET_KERNEL": "off", "PYTHONDONTWRITEBYTECODE": "1"}  # nothing is compiled
    for library in ("pytorch_lightning", "sacrebleu", "tokenizers", "torch"):
        importlib.import_module(library)
    missed = 0
    for number in numbers or range(len(FAULTS)):
        with tempfile.TemporaryDirectory() as folder:
            noticed = notices(FAULTS[number], Path(folder))
        missed += not noticed
        word = "noticed" if noticed else "NOT NOTICED"
        print(f"{number:>3}  {word:<11}  {FAULTS[number].what} ({FAULTS[number].file})", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main([int(number) for number in sys.argv[1:]]))

"""Do the work of six new users, with a wheel in an empty environment each (docs/dev/releasing.md).

    python tests/release/newcomers_from_wheel.py FOLDER                # all six, one after the other
    python tests/release/newcomers_from_wheel.py FOLDER linguist       # one of them
    python tests/release/newcomers_from_wheel.py FOLDER --steps 20     # every training has 20 steps: some minutes

FOLDER must be new or empty. Each person is a module in tests/release/newcomers. It writes the files that the person
has, types commands as the README and the guides give them, in a shell without settings of Tercet, and checks the
results: losses against the baselines, accuracy against the most frequent label, the found documents, the weights after
a kill, the files. With `--steps`, failed checks of what a model has learned do not count.

The seconds of each command are printed. A person must be finished within 20 minutes (`--minutes`), without the
installations.
"""

import argparse
import importlib
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

from newcomers.desk import Desk
from readme_from_wheel import build_wheel, make_environment, versions

PEOPLE = ("documents", "teacher", "biologist", "hub_model", "linguist", "researcher")


def environment_over(base: Path, folder: Path) -> Path:
    """Create an environment that contains only `pip` and, through a line in a .pth file, PyTorch of `base`."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    [site_packages], [libraries] = (path.glob("lib/python*/site-packages") for path in (folder, base))
    (site_packages / "pytorch.pth").write_text(f"{libraries}\n")
    return folder


def work(name: str, desk: Desk) -> float:
    """Let one person work, and return the seconds without installations. An error counts as a failure."""
    person = importlib.import_module(f"newcomers.{name}")
    print(f"\n{name}: {(person.__doc__ or '').splitlines()[0]}", flush=True)
    person.write_files(desk.folder)
    start = time.monotonic()
    try:
        person.work(desk)
    except Exception:
        desk.report("the work was not finished", False, start, traceback.format_exc())
    return time.monotonic() - start - desk.seconds_of_pip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "people", nargs="*", metavar="PERSON", help=f"one or more of {', '.join(PEOPLE)} (default: all)"
    )
    parser.add_argument("--steps", type=int, help="number of steps of every training (default: as typed)")
    parser.add_argument("--wheel", type=Path, help="wheel to install (default: built from this checkout)")
    parser.add_argument("--base", type=Path, help="environment with PyTorch of a previous run")
    parser.add_argument("--minutes", type=float, default=20, help="limit for each person (default: 20)")
    options = parser.parse_args()
    if unknown := [name for name in options.people if name not in PEOPLE]:
        parser.error(f"unknown person: {', '.join(unknown)}; choose from {', '.join(PEOPLE)}")
    folder = options.folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    wheel = build_wheel(folder) if options.wheel is None else options.wheel.resolve()
    base = make_environment(folder / "base") if options.base is None else options.base.resolve()
    os.environ.setdefault("PIP_CACHE_DIR", str(folder / "pip-cache"))
    lines = list[str]()
    n_failures = 0
    for name in options.people or PEOPLE:
        place = folder / name
        place.mkdir(parents=True)
        desk = Desk(place, environment_over(base, folder / f"environment-{name}"), wheel=wheel, steps=options.steps)
        seconds = work(name, desk)
        if seconds > 60 * options.minutes:
            desk.failures.append("the time limit")
        n_failures += len(desk.failures)
        lines.append(
            f"{name}: {seconds:.0f} s, {len(desk.failures)} failures ({', '.join(versions(desk.environment))})"
        )
    print("\n" + "\n".join(lines))
    return 1 if n_failures else 0


if __name__ == "__main__":
    sys.exit(main())

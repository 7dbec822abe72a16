"""Make a release in dist/: wheels, sdist, conda recipe, SBOM and hashes (`make release`; see docs/dev/releasing.md).

The same commit gives byte-identical sdists and wheels for any machine, regardless of where, when and by whom they are
built. With the same compiler, the wheel with kernels for this kind of machine is identical too.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
ARM_COMPILER = "aarch64-linux-gnu-g++"  # Debian's package g++-aarch64-linux-gnu
# Packages with another name on conda-forge than on PyPI
CONDA_NAMES = {
    "torch": "pytorch",
    "huggingface-hub": "huggingface_hub",
    "xxhash": "python-xxhash",
    "matplotlib": "matplotlib-base",
}
TOOLS = Path(sys.executable).parent  # scripts of the environment with requirements-release.lock


def build(source: Path, dist: Path, *, epoch: int) -> None:
    """Build sdist and wheel from the files in `source`, with all timestamps set to `epoch` (seconds since 1970)."""
    _run_hatchling(source, dist, epoch=epoch)


def build_with_kernels(source: Path, dist: Path, *, epoch: int, compiler: str | None = None) -> None:
    """Build the wheel with kernels for all levels of one machine type.

    Args:
        source: Folder with the project.
        dist: Folder in which the wheel is written.
        epoch: Time of the files, in seconds since 1970.
        compiler: C++ compiler, whose target is the machine type; None for that in CXX, or else c++.
    """
    cross = {} if compiler is None else {"CXX": compiler}
    _run_hatchling(source, dist, "-t", "wheel", epoch=epoch, HATCH_BUILD_HOOKS_ENABLE="1", **cross)


def _run_hatchling(source: Path, dist: Path, *arguments: str, epoch: int, **environment: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(dist), *arguments]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), **environment}
    subprocess.run(command, cwd=source, env=variables, check=True)


def conda_recipe(pyproject: Mapping[str, Any], sdist: Path) -> str:
    """Return the recipe of a conda package (`recipe.yaml` of rattler-build) that is built from the sdist.

    The package contains no kernels, like the wheel for any machine. Requirements and texts are those of pyproject.toml,
    so the recipe is made for each release and is not kept in the repository.

    Args:
        pyproject: Content of pyproject.toml.
        sdist: Source distribution, which is expected in the folder of the recipe.
    """
    project = pyproject["project"]
    requirements = [re.fullmatch(r"([\w.-]+)(.*)", line) for line in project["dependencies"]]
    packages = [(match[1].lower(), match[2]) for match in requirements if match is not None]
    recipe = {
        "schema_version": 1,
        "package": {"name": project["name"], "version": project["version"]},
        "source": {"path": sdist.name, "sha256": hashlib.sha256(sdist.read_bytes()).hexdigest()},
        "build": {
            "noarch": "python",
            "script": "${{ PYTHON }} -m pip install . --no-deps --no-build-isolation -vv",
            "python": {"entry_points": [f"{name} = {target}" for name, target in project["scripts"].items()]},
        },
        "requirements": {
            "host": [f"python {project['requires-python']}", "pip", *pyproject["build-system"]["requires"]],
            "run": [
                f"python {project['requires-python']}",
                *(f"{CONDA_NAMES.get(name, name)} {versions}".rstrip() for name, versions in packages),
            ],
        },
        "tests": [{"python": {"imports": [project["name"]]}}, {"script": [f"{project['name']} --version"]}],
        "about": {"summary": project["description"], "license": project["license"], "license_file": "LICENSE"},
    }
    return json.dumps(recipe, indent=2, ensure_ascii=False) + "\n"  # JSON is YAML


def write_sbom(environment: Path, path: Path, *, epoch: int) -> None:
    """Write the packages of a virtual environment and their dependencies as CycloneDX JSON."""
    command = [TOOLS / "cyclonedx-py", "environment", "--output-reproducible", "--mc-type", "library"]
    arguments = ["--pyproject", ROOT / "pyproject.toml", "-o", path, environment / "bin" / "python"]
    subprocess.run([*command, *arguments], env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}, check=True)


def audit(lock: Path) -> tuple[str, bool]:
    """Query PyPI's advisory service for known vulnerabilities of the packages in a lock file.

    Returns:
        A one-line report, and whether a vulnerability is known. If the service does not answer, that is reported and
        the second value is False.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [TOOLS / "pip-audit", "-r", lock, "--no-deps", "--disable-pip"]
        options = ["--progress-spinner", "off", "-f", "json", "-o", report]
        try:
            process = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600, check=False)
        except subprocess.TimeoutExpired:
            return f"{lock.name}: NOT LOOKED UP: no answer within 10 minutes", False
        if not report.exists():  # rejected, or no network
            reason = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"{lock.name}: NOT LOOKED UP: {reason[:200]}", False
        packages = json.loads(report.read_text())["dependencies"]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    faults = [f"{package['name']} {fault['id']}" for package in packages for fault in package.get("vulns", ())]
    missing = f"; NOT LOOKED UP, unknown to the service: {len(unknown)}" if unknown else ""
    known = f"; known faults: {', '.join(faults)}" if faults else ""
    return f"{lock.name}: {len(packages) - len(unknown)} packages looked up{known}{missing}", bool(faults)


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    changes = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    if changes.stdout:
        print("release: error: the working tree has uncommitted changes; commit or stash them", file=sys.stderr)
        return 2
    log = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    epoch, dist = int(log.stdout), ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    build(ROOT, dist, epoch=epoch)
    [wheel] = dist.glob("*.whl")
    [sdist] = dist.glob("*.tar.gz")
    build_with_kernels(ROOT, dist, epoch=epoch)
    if shutil.which(ARM_COMPILER):
        build_with_kernels(ROOT, dist, epoch=epoch, compiler=ARM_COMPILER)
    else:
        print(f"no wheel with kernels for ARM: {ARM_COMPILER} is not installed")
    packages = [*dist.glob("*.whl"), sdist]
    subprocess.run([TOOLS / "twine", "check", "--strict", *packages], check=True)  # PyPI renders the README
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (dist / "recipe.yaml").write_text(conda_recipe(pyproject, sdist), encoding="utf-8")
    write_sbom(ROOT / ".venv", dist / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json", epoch=epoch)
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(dist.iterdir())}
    lines = "".join(f"{digest}  {name}\n" for name, digest in hashes.items())
    (dist / "SHA256SUMS").write_text(lines)
    print(lines, end="")
    answers = [audit(ROOT / f"requirements{name}.lock") for name in ("", "-dev", "-build", "-torch")]
    for line, _ in answers:
        print(line)
    return 1 if any(faulty for _, faulty in answers) else 0


if __name__ == "__main__":
    sys.exit(main())

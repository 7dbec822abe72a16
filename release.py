"""Make a release in dist/: wheels, sdist, SBOM and hashes (`make release`; see docs/dev/releasing.md).

The same commit gives byte-identical sdists and wheels for any machine, regardless of where, when and by whom they are
built. With the same compiler, the wheel with kernels for this kind of machine is identical too.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent
TOOLS = Path(sys.executable).parent  # scripts of the environment with requirements-release.lock


def build(source: Path, dist: Path, *, epoch: int) -> None:
    """Build sdist and wheel from the files in `source`, with all timestamps set to `epoch` (seconds since 1970)."""
    _run_hatchling(source, dist, epoch=epoch)


def build_with_kernels(source: Path, dist: Path, *, epoch: int) -> None:
    """Build the wheel for machines like this one, with kernels for all their levels; CXX selects the compiler."""
    _run_hatchling(source, dist, "-t", "wheel", epoch=epoch, HATCH_BUILD_HOOKS_ENABLE="1")


def _run_hatchling(source: Path, dist: Path, *arguments: str, epoch: int, **environment: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(dist), *arguments]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), **environment}
    subprocess.run(command, cwd=source, env=variables, check=True)


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
    build_with_kernels(ROOT, dist, epoch=epoch)
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

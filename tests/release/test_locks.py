"""Development installs are pinned by version and hash, and a modified file is rejected."""

import base64
import hashlib
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = {path.name: path for path in ROOT.glob("requirements*.lock")}
HASHED_LOCKS = sorted(set(LOCKS) - {"requirements-torch.lock"})


def requirements(lock: Path) -> dict[str, list[str]]:
    """Return the hashes of each pin, such as numpy==2.4.6."""
    text = re.sub(r"^#.*\n", "", lock.read_text(), flags=re.MULTILINE).replace(" \\\n", "")
    lines = (line.split() for line in text.splitlines())
    return {pin: hashes for pin, *hashes in lines}


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_a_lock_is_exact_and_names_no_registry(name: str) -> None:
    pins = requirements(LOCKS[name])
    assert pins
    for pin, hashes in pins.items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", pin), f"{pin!r} is not one exact version"
        assert "nvidia" not in pin
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", option) for option in hashes)
        assert hashes or name == "requirements-torch.lock", f"{pin} has no hash"


def test_the_makefile_installs_all_locks() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert {*re.findall(r"-r (\S+\.lock)", makefile)} == set(LOCKS)
    assert {*re.findall(r"\$\(LOCKED\) -r (\S+)", makefile)} == set(HASHED_LOCKS)
    pins = {pin for name in HASHED_LOCKS for pin in requirements(LOCKS[name])}
    assert {"numpy", "hatchling", "mkdocs", "cyclonedx-bom"} <= {pin.partition("==")[0] for pin in pins}
    locks = [ROOT / f"requirements{name}.lock" for name in ("", "-dev", "-build")]
    parts = [pin.partition("==") for lock in locks for pin in requirements(lock)]
    versions = {(package, version) for package, _, version in parts}  # in one environment
    assert len(versions) == len({package for package, _ in versions})


def collect_requirements(requirement: str, collected: set[str]) -> None:
    """Add the package, with its extras, and everything it requires on any system to `collected`."""
    parsed = Requirement(requirement)
    key = f"{canonicalize_name(parsed.name)}{sorted(parsed.extras)}"
    if key in collected:
        return
    collected.add(key)
    for dependency in metadata.requires(parsed.name) or ():
        marker = Requirement(dependency).marker
        places = [
            {"extra": extra, "sys_platform": system, "platform_system": name}
            for extra in ("", *parsed.extras)
            for system, name in (("linux", "Linux"), ("darwin", "Darwin"), ("win32", "Windows"))
        ]
        if marker is None or any(marker.evaluate(place) for place in places):
            collect_requirements(dependency.partition(";")[0], collected)


@pytest.mark.slow
def test_the_lock_contains_exactly_the_requirements() -> None:
    collected: set[str] = set()
    collect_requirements("tercet[explore]", collected)
    names = {name.partition("[")[0] for name in collected} - {"tercet", "torch"}
    names = {name for name in names if not name.startswith(("nvidia-", "cuda-", "triton"))}  # of GPU builds
    locked_names = {canonicalize_name(pin.partition("==")[0]) for pin in requirements(ROOT / "requirements.lock")}
    assert names == locked_names


def test_only_locked_packages_are_installed() -> None:
    """The locks cover dependencies and build requirements, which pip would otherwise fetch without checking hashes."""
    makefile = (ROOT / "Makefile").read_text()
    [flags] = re.findall(r"^LOCKED := \$\(PIP_INSTALL\) (.*)$", makefile, re.MULTILINE)
    assert {"--require-hashes", "--no-deps", "--no-build-isolation"} <= {*flags.split()}
    installs = re.findall(r"\$\(PIP_INSTALL\) (.*)$", makefile, re.MULTILINE)
    unlocked = [install for install in installs if install != flags]
    assert unlocked == ["-r requirements-torch.lock", "--no-deps --no-build-isolation --editable ."]


def write_wheel(folder: Path, code: str) -> Path:
    """Write a minimal package."""
    path, info = folder / "smallest-1.0-py3-none-any.whl", "smallest-1.0.dist-info"
    files = {
        "smallest.py": code,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: smallest\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for name, text in files.items()
    ]
    with ZipFile(path, "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": "\n".join([*record, f"{info}/RECORD,,"]) + "\n"}.items():
            wheel.writestr(name, text)
    return path


@pytest.mark.slow
def test_a_modified_wheel_is_rejected(tmp_path: Path) -> None:
    [flags] = re.findall(r"^LOCKED := \$\(PIP_INSTALL\) (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    lock, index = tmp_path / "requirements.lock", tmp_path / "index"
    index.mkdir()
    whole = write_wheel(index, "good = True\n")
    lock.write_text(f"smallest==1.0 \\\n    --hash=sha256:{hashlib.sha256(whole.read_bytes()).hexdigest()}\n")

    def install(target: Path) -> subprocess.CompletedProcess[str]:
        options = ["--no-index", "--find-links", index, "--target", target, "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "install", *flags.split(), *options, "-r", lock]
        environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    result = install(tmp_path / "first")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "first" / "smallest.py").is_file()
    write_wheel(index, "good = False\n")
    result = install(tmp_path / "second")
    assert result.returncode != 0
    assert "DO NOT MATCH THE HASHES" in result.stderr
    assert not (tmp_path / "second").exists()

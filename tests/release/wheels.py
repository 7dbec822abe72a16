"""Copy a checkout, install only a wheel in a new environment, and run commands there."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SDIST, ANY, MACHINE = "sdist", "any machine", "this kind of machine"


def copy_project(target: Path) -> Path:
    """Copy the project's files, as a checkout contains them."""
    result = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if result.returncode:
        pytest.skip("not a git checkout: no list of the project's files")
    for name in result.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
            if os.access(ROOT / name, os.X_OK):
                (target / name).chmod((target / name).stat().st_mode | 0o100)
    return target


def install(wheel: Path, environment: Path) -> Path:
    """Create a virtual environment that contains only the wheel.

    A line in a .pth file adds PyTorch and the other dependencies of the tests. `make setup` already covers their
    download.
    """
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([environment / "bin" / "python", *pip, wheel], check=True)
    [site_packages] = environment.glob("lib/python*/site-packages")
    libraries = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    dependencies = [path for path in sys.path if path.endswith("site-packages") and path not in libraries]
    (site_packages / "libraries.pth").write_text(
        "\n".join([*libraries, *dependencies]) + "\n"
    )  # after the wheel's folder
    return environment


def tercet(installed: Path, *arguments: str, folder: Path, stdin: Path = Path(os.devnull), **variables: str) -> str:
    """Run a command in the environment, without a compiler."""
    environment = {
        "PATH": str(installed / "bin"),
        "HOME": str(folder),
        "TERCET_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "TERCET_OFFLINE": "1",
        **variables,
    }
    command = [installed / "bin" / "tercet", *arguments]
    with stdin.open() as stdin_file:
        result = subprocess.run(
            command, cwd=folder, env=environment, stdin=stdin_file, capture_output=True, text=True, check=False
        )
    assert result.returncode == 0, result.stderr
    assert "compiled kernels" not in result.stderr  # neither compiled nor missing
    return result.stdout

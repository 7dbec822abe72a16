"""`tercet.nn` does not need `tercet.kernel`: without that package it imports, and its own tests pass."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDS_MODELS = {"test_without_kernels.py", "test_linear.py", "test_init.py", "test_document_mask.py"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("files", ["test_feedforward.py", pytest.param("test_*.py", marks=pytest.mark.exhaustive)])
def test_nn_passes_its_tests_without_the_kernel_package(files: str, tmp_path: Path) -> None:
    package = tmp_path / "tercet"
    shutil.copytree(ROOT / "src/tercet/nn", package / "nn", ignore=shutil.ignore_patterns("__pycache__"))
    # Modules and packages that `tercet.nn.specs` needs.
    for name in ("spec.py", "limits.py", "messages.py", "notebook.py", "lazy_exports.py"):
        shutil.copy(ROOT / "src/tercet" / name, package)
    (package / "__init__.py").write_text("")
    tests = [str(path) for path in sorted((ROOT / "tests/nn").glob(files)) if path.name not in NEEDS_MODELS]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = subprocess.run(
        [sys.executable, "-c", CHECK, *tests],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]


CHECK = f"""
import importlib.util, sys
import pytest
assert importlib.util.find_spec("tercet.kernel") is None
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", {str(ROOT)!r}, *sys.argv[1:]]))
"""


def test_only_one_file_imports_the_kernel_package() -> None:
    names = [path.name for path in (ROOT / "src/tercet/nn").glob("*.py") if "tercet.kernel" in path.read_text()]
    assert names == ["kernels.py"]

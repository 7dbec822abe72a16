"""Ray Train's workers are ranks, and train as one process does.

Ray is large and not a dependency: if it is not installed, these tests are skipped.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tiny_runs import tiny_recipe, weights

from tercet.settings_yaml import write_yaml
from tercet.training import train

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_train.py"


@pytest.mark.slow
def test_workers_are_ranks(tmp_path: Path) -> None:
    python = os.environ.get("TERCET_RAY_PYTHON") or (sys.executable if importlib.util.find_spec("ray") else None)
    if python is None:
        pytest.skip(
            "ray is not installed, nor does TERCET_RAY_PYTHON name a Python that has it: pip install 'ray[train]'"
        )
    recipe = tiny_recipe(tmp_path, exact=True)
    (tmp_path / "recipe.yaml").write_text(write_yaml(recipe))
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # a short name, since it contains sockets
        environment = {
            **os.environ, "HOME": str(tmp_path), "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        process = subprocess.run(
            [python, str(EXAMPLE), "recipe.yaml", "run", "--workers", "2"],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False,
        )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    single_run = train(recipe, tmp_path / "whole", quiet=True)
    assert weights(tmp_path / "run") == weights(single_run)

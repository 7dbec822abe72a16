"""Training, reading a prompt and stepping each trace as one graph: no Python value is taken from a tensor."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["learned", "rotary", "alibi"])
def test_each_pass_is_one_graph_and_stays_one(kind: str) -> None:
    done = subprocess.run([sys.executable, Path(__file__).with_name("traced.py"), kind], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]

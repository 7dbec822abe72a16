"""A translator learns to reverse sequences, and its cross-attention points at the symbol that it copies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.exhaustive  # `training/test_learning.py` tests in less time that a translator learns to reverse
@pytest.mark.parametrize("seed", [0, 1])
def test_translator_learns_to_reverse_and_attends_along_the_antidiagonal(seed: int) -> None:
    command = [sys.executable, Path(__file__).with_name("reversing.py"), str(seed)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    result = json.loads(process.stdout)
    assert result["exact"] == 1.0
    assert result["mirrored"] >= 0.95

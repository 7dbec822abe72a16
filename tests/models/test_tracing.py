"""Training, reading a prompt and stepping each trace as one graph: no Python value is taken from a tensor."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def exhaustive(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.exhaustive) for kind in kinds]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rotary", *exhaustive("learned", "alibi", "relative_bias")])
def test_each_pass_is_one_graph_and_stays_one(kind: str) -> None:
    run("traced.py", kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["learned", *exhaustive("rotary")])
def test_so_it_is_for_an_encoder_whose_masked_rows_alone_are_scored(kind: str) -> None:
    run("traced_encoder.py", kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sinusoidal", *exhaustive("rotary", "alibi", "relative_bias")])
def test_so_it_is_for_a_translator_whose_rows_spread_and_go(kind: str) -> None:
    run("traced_translator.py", kind)


def run(script: str, kind: str) -> None:
    done = subprocess.run([sys.executable, Path(__file__).with_name(script), kind], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]

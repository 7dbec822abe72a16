"""Folders of version 0.1 open with the recorded answers, their recipes are trained, and their runs are resumed.

`keep_version.py` made them. They are not changed when the code changes: a failure here breaks a promise of
docs/reference/compatibility.md.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sampled_cases import sampled
from tercet.checkpoint import load_model
from tercet.cli.main import main

FOLDERS = Path(__file__).with_name("version_0_1")
KINDS = ("text", "pairs")
STEPS = 4

pytestmark = pytest.mark.slow


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy one of the folders and change into it, because its data has a relative path."""
    shutil.copytree(FOLDERS / request.param, tmp_path / request.param)
    monkeypatch.chdir(tmp_path / request.param)
    return tmp_path / request.param


def test_folders_of_0_1_give_the_recorded_answers(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, str] = json.loads((old / "answers.json").read_text())
    assert len(answers) == 2
    for command, recorded in answers.items():
        assert main(command.split()) == 0
        assert_contains(json.loads(capsys.readouterr().out), json.loads(recorded))


def assert_contains(value: Any, recorded: Any) -> None:
    """Later versions may add values. Floats may differ by the rounding of another machine."""
    if isinstance(recorded, dict):
        for key, item in recorded.items():
            assert_contains(value[key], item)
    elif isinstance(recorded, list):
        assert len(value) == len(recorded)
        for item, recorded_item in zip(value, recorded, strict=True):
            assert_contains(item, recorded_item)
    else:
        assert value == (pytest.approx(recorded, rel=1e-4) if isinstance(recorded, float) else recorded)


def test_runs_of_0_1_are_resumed(old: Path) -> None:
    assert main(["train", "run", "--more", "2", "--quiet"]) == 0
    record = json.loads((old / "run" / "run.json").read_text())
    assert (record["saved"], record["finished"]) == (STEPS + 2, True)
    load_model(old / "run")


@pytest.mark.parametrize("old", sampled(KINDS), indirect=True)
def test_recipes_of_0_1_are_trained(old: Path) -> None:
    assert main(["train", "run/recipe.yaml", "--out", "again", "--quiet"]) == 0
    assert main(["train", "recipe.yaml", "--out", "own", "--quiet"]) == 0
    first, second = (load_model(old / name).model.state_dict() for name in ("again", "own"))
    for name, tensor in first.items():
        assert tensor.equal(second[name]), name

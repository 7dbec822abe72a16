"""Run folders of the previous version open unchanged and give the recorded answers.

A run that was started with a recipe of that version is rejected with a one-line error. The folders are four runs of
four steps each. `answers.json` contains the recorded output of each command.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tercet.cli.main import main

FOLDERS = Path(__file__).with_name("version_before")
KINDS = ("text", "pairs", "masked", "labels")


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy one of the folders and change into it, because its data has a relative path."""
    shutil.copytree(FOLDERS / request.param, tmp_path / request.param)
    monkeypatch.chdir(tmp_path / request.param)
    return tmp_path / request.param


@pytest.mark.slow
def test_models_open_and_give_the_recorded_answers(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, dict[str, Any]] = json.loads((old / "answers.json").read_text())
    assert len(answers) == 3
    for command, answer in answers.items():
        assert main(command.split()) == answer["code"] == 0
        out = capsys.readouterr().out
        if command.endswith("--json"):
            recorded = values(answer["out"])
            assert drop_new_values(values(out), recorded) == nearly(recorded), command
        else:
            assert out.startswith(answer["out"]), command  # newer versions may add lines


def values(out: str) -> Any:
    """Parse one JSON value over several lines, or one value per line."""
    try:
        return [json.loads(out)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in out.splitlines()]


def drop_new_values(value: Any, recorded: Any) -> Any:
    """Remove values that newer versions added."""
    if isinstance(value, dict) and isinstance(recorded, dict):
        return {key: drop_new_values(item, recorded[key]) for key, item in value.items() if key in recorded}
    if isinstance(value, list) and isinstance(recorded, list):
        return [drop_new_values(item, recorded[number]) for number, item in enumerate(value)]
    return value


def nearly(value: Any) -> Any:
    """Accept values that other machines round differently."""
    if isinstance(value, dict):
        return {key: nearly(item) for key, item in value.items()}
    if isinstance(value, list):
        return [nearly(item) for item in value]
    return pytest.approx(value, rel=1e-4) if isinstance(value, float) else value


def test_run_of_the_previous_version_is_rejected_in_one_line(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run/recipe.yaml", "--out", "run"]) == 2
    refusal = capsys.readouterr().err
    assert "requires a task: language, masked" in refusal
    assert refusal.count("\n") == 1

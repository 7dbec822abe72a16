"""Runs with a time budget: hours are converted to steps once, and the number is kept."""

import json
import signal
from pathlib import Path

import pytest
from tiny_runs import CHECKPOINT, TINY, assert_same_run, child, dies_at_rename, exit_code, figures, tiny_masked_recipe

from tercet.config import UserError
from tercet.training import train
from tercet.training.compute import speed as speed_module
from tercet.training.compute.speed import Speed
from tercet.training.recipe.specs import TrainingSpec
from tercet.training.tasks.plan import Plan

pytestmark = pytest.mark.slow  # a budget is measured


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_module, "MIN_SECONDS", 0.05)


def test_it_takes_about_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_masked_recipe(
        tmp_path, max_steps=None, max_hours=1 / 3600, validate_every=50, save_every=10_000, log_every=50
    )
    out = train(recipe, tmp_path / "run")
    output = capsys.readouterr().err
    facts = json.loads((out / "run.json").read_text())
    assert f"{facts['steps']:,} steps in" in output
    assert "of 0.000277778 hours" in output
    assert figures(out)["train/loss"][-1][0] == facts["steps"] > 2


@pytest.mark.parametrize(
    "family", [name if name == "pairs" else pytest.param(name, marks=pytest.mark.exhaustive) for name in TINY]
)
def test_a_resumed_run_keeps_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    monkeypatch.setattr(speed_module, "speed", lambda *_, **__: Speed(0.02, 0.1, 0.3))
    recipe = TINY[family](tmp_path, max_steps=None, max_hours=3 / 3600)
    reference = train(recipe, tmp_path / "whole", quiet=True)
    steps = json.loads((reference / "run.json").read_text())["steps"]
    assert steps == Speed(0.02, 0.1, 0.3).plan(Plan(n_rows=1, unit=1), recipe.training).steps == 12
    out = tmp_path / "run"

    def work() -> None:
        dies_at_rename(1, after=True, name=CHECKPOINT)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    monkeypatch.setattr(speed_module, "speed", lambda *_, **__: pytest.fail("measured again"))
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)


def test_a_ramp_and_a_budget_together(tmp_path: Path) -> None:
    recipe = tiny_masked_recipe(tmp_path, max_steps=None, max_hours=0.5 / 3600, batch_ramp=0.6, log_every=1)
    out = train(recipe, tmp_path / "run", quiet=True)
    tokens = [y for _, y in figures(out)["tokens"]]
    assert tokens[0] == 40  # one micro-batch of 4 rows
    assert tokens[-1] - tokens[-2] == 160


@pytest.mark.parametrize("family", ["masked", pytest.param("pairs", marks=pytest.mark.exhaustive)])
def test_a_run_with_a_ramp_resumes_exactly(tmp_path: Path, family: str) -> None:
    recipe = TINY[family](tmp_path, batch_ramp=0.6)
    reference = train(recipe, tmp_path / "whole", quiet=True)
    out = tmp_path / "run"

    def work() -> None:
        dies_at_rename(1, after=True, name=CHECKPOINT)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)


def test_exactly_one_length() -> None:
    for lengths in ({}, {"max_steps": 1, "max_hours": 1.0}, {"max_epochs": 1, "max_steps": 1}):
        with pytest.raises(ValueError, match="exactly one of max_steps, max_epochs and max_hours"):
            TrainingSpec(**lengths)
    with pytest.raises(ValueError, match="max_hours=-1 must be above 0"):
        TrainingSpec(max_hours=-1)


def test_recipe_with_two_lengths_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set exactly one of max_steps"):
        tiny_masked_recipe(tmp_path, max_hours=1)

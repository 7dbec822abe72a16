"""At the end of a run, its best model is compared with baselines and with the model before fine-tuning."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny_recipe

from tercet.checkpoint import load_model, read_card
from tercet.cli.main import main
from tercet.cli.train import summary
from tercet.config import merge, to_plain
from tercet.training import parse_recipe, train
from tercet.training.run import judge
from tercet.training.run.judge import judge_fine_tuning, judge_run, validation_loss
from tercet.training.run_folder.changes import read_recipe
from tercet.training.tasks.open_task import task_of

FinishedRun = Callable[[str], Path]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["text", "masked", "labels", "pairs"])
def test_the_validation_is_that_of_the_training(finished_run: FinishedRun, family: str) -> None:
    folder = finished_run(family)
    task = task_of(read_recipe(folder), progress=False)
    loss = validation_loss(task, load_model(folder).model)
    assert loss == pytest.approx(read_card(folder).metrics["val/loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "bad", "good", "name"),
    [
        ("text", {"val/loss": 9.0}, {"val/loss": 0.5}, "counting tokens"),
        ("masked", {"val/loss": 8.84, "val/unigram_entropy": 6.99}, {"val/loss": 2.0}, "counting tokens"),
        ("pairs", {"val/loss": 9.0}, {"val/loss": 0.5}, "counting tokens"),
        ("labels", {"val/accuracy": 0.0}, {"val/accuracy": 1.0}, "most frequent label"),
    ],
)
def test_a_bad_model_gets_a_verdict_and_a_good_one_does_not(
    finished_run: FinishedRun, monkeypatch: pytest.MonkeyPatch, family: str, bad: Any, good: Any, name: str
) -> None:
    folder = finished_run(family)
    card = read_card(folder)

    def judge_metrics(metrics: dict[str, float]) -> list[str]:
        changed = replace(card, metrics={**card.metrics, **metrics})
        monkeypatch.setattr(judge, "read_card", lambda folder: changed)
        return [verdict.text for verdict in judge_run(folder)]

    [text] = judge_metrics(bad)
    assert name in text
    assert judge_metrics(good) == []
    monkeypatch.setattr(judge, "read_card", lambda folder: replace(card, metrics={}))
    assert judge_run(folder) == []


@pytest.mark.slow
def test_fine_tuning_that_destroys_the_model_is_reported(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = finished_run("text")

    def fine_tune(rate: float, name: str) -> Path:
        training = {"optimizer": {"kind": "adamw", "lr": rate}, "max_steps": 4, "validate_every": 4}
        plain = to_plain(tiny_recipe(tmp_path))
        plain["model"] = {}
        settings = merge(plain, {"pretrained": str(old), "training": training})
        return train(parse_recipe(settings, name="fine-tuning"), tmp_path / name, quiet=True)

    destroyed = judge_run(fine_tune(3.0, "bad"))
    assert destroyed[-1].baseline_name == "itself before fine-tuning"
    assert destroyed[-1].baseline == pytest.approx(read_card(old).metrics["val/loss"], rel=1e-4)
    assert f"Warning: {destroyed[-1].text}." in summary(tmp_path / "bad", verdicts=destroyed).splitlines()
    healthy = judge_run(fine_tune(0.003, "good"))
    assert "itself before fine-tuning" not in [verdict.baseline_name for verdict in healthy]
    assert judge_fine_tuning(tmp_path / "bad") == destroyed[-1:]
    assert judge_fine_tuning(old) == []  # trained from scratch
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "bad"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"][-1] == destroyed[-1].to_dict()
    assert main(["train", str(tmp_path / "bad"), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == [verdict.to_dict() for verdict in destroyed]

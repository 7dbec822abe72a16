"""The choice of the best model and the end of patience, tested without training."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import TINY

from tercet.checkpoint import Card
from tercet.training.loop.step_actions import Validation
from tercet.training.tasks.open_task import task_of


def run_validations(
    folder: Path, monkeypatch: pytest.MonkeyPatch, family: str, name: str, values: list[float], **settings: Any
) -> tuple[Validation, list[bool], Any]:
    """Return a validation after each step, its result for each value, and its trainer."""
    recipe = TINY[family](folder, validate_every=1, max_steps=100, **settings)
    validation = Validation(task_of(recipe, progress=False))
    trainer: Any = SimpleNamespace(global_step=0, should_stop=False)
    module: Any = SimpleNamespace(total_steps=100)
    improvements = list[bool]()
    for value in values:
        if trainer.should_stop:
            break
        trainer.global_step += 1
        monkeypatch.setattr(validation, "_validate", lambda *_, value=value: {name: value})
        monkeypatch.setattr(validation, "_scores", lambda *_: {})
        validation.after_step(trainer, module)
        improvements.append(validation.improved)
    return validation, improvements, trainer


@pytest.mark.parametrize(
    ("family", "best_by", "values"),
    [("text", "loss", [3.0, 2.0, 2.0, 2.5, 1.0]), ("labels", "accuracy", [0.1, 0.4, 0.4, 0.2, 0.6])],
)
def test_the_best_is_the_first_with_the_least_loss_or_the_highest_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, best_by: str, values: list[float]
) -> None:
    validation, improvements, _ = run_validations(tmp_path, monkeypatch, family, f"val/{best_by}", values)
    assert improvements == [True, True, False, False, True]
    assert validation.state["best_step"] == 5
    validation.restore_best(Card(name="x", step=7, metrics={f"val/{best_by}": 2.0 if best_by == "loss" else 0.5}))
    assert validation.state["best_step"] == 7
    assert validation.state["best"] == (2.0 if best_by == "loss" else -0.5)


def test_patience_is_the_number_of_validations_without_a_better_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [3.0, 2.0, 2.5, 1.0, 1.5, 1.2, 1.1, 0.1]
    validation, improvements, trainer = run_validations(tmp_path, monkeypatch, "text", "val/loss", values, patience=3)
    assert (len(improvements), trainer.should_stop, validation.state["best_step"]) == (7, True, 4)


def test_a_count_sum_over_batches_keeps_its_last_digit(tmp_path: Path) -> None:
    """Beyond 2^24, float32 has no odd integers."""
    task = task_of(TINY["text"](tmp_path), progress=False)
    trainer: Any = SimpleNamespace(global_rank=0)
    module: Any = SimpleNamespace(spec=task.recipe.training)
    parts = [[torch.tensor(2**24 + 1), torch.tensor(2)], [torch.tensor(0.5), torch.tensor(0.25)]]
    assert Validation(task)._sum_over_batches(trainer, module, parts, 2) == [2**24 + 3, 0.75]

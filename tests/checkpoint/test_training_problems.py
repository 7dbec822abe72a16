"""Problems that metrics show: runs that have one, each trained with its fault, and healthy runs of all tasks.

`healthy_runs/` has the metrics of runs of packaged recipes with their own settings; `keep_healthy_run.py` wrote them.
"""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.keep_healthy_run import HEALTHY_RUNS
from tests.training.tiny_runs import tiny_recipe

from tercet.checkpoint.metrics import COLUMNS, Columns, read_metrics
from tercet.checkpoint.training_problems import TrainingFacts, find_training_problems
from tercet.training import read_recipe, train
from tercet.training.run_folder.choices import More, Resume

RANDOM_TEXT = "".join(np.random.default_rng(1).choice([*string.ascii_lowercase], 2000).tolist())
NO_DROPOUT = {"embedding": 0.0, "attention": 0.0, "residual": 0.0}
ADAM: dict[str, Any] = {"kind": "adamw", "lr": 0.003}


def names_after(columns: Columns, step: int, **facts: Any) -> set[str]:
    """Return the names of the problems that the metrics show up to `step`."""

    def points(name: str) -> np.ndarray:
        return np.array([point for point in columns[name] if point[0] <= step], float).reshape(-1, 2)

    return {problem.name for problem in find_training_problems(TrainingFacts(points=points, **facts))}


def find_in_tiny_run(folder: Path, capsys: pytest.CaptureFixture[str], *, text: str, **settings: Any) -> str:
    """Train a tiny run on `text` and return the lines on stderr that report problems."""
    (folder / "text.txt").write_text(text)
    changes = {"model": {"stack": {"dropout": NO_DROPOUT}}} | settings.pop("changes", {})
    plain = {
        "max_steps": 120,
        "validate_every": 12,
        "save_every": 120,
        "micro_batch_size": 16,
        "sample_tokens": 0,
        "warmup_steps": 0,
    }
    train(tiny_recipe(folder, changes, **{**plain, "optimizer": ADAM, **settings}), folder / "run")
    lines = capsys.readouterr().err.splitlines()
    return "\n".join(line for line in lines if line.startswith("step ") and "tokens/s" not in line)


LEARNABLE = "the cat sat on the mat. " * 100


@pytest.mark.slow
def test_divergence_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rising = {"optimizer": {"kind": "adamw", "lr": 3.0}, "warmup_steps": 100, "clip_norm": None}
    words = find_in_tiny_run(tmp_path, capsys, text=LEARNABLE, **rising)
    assert "training diverges; reduce training.optimizer.lr" in words


@pytest.mark.slow
def test_a_run_that_learns_nothing_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = find_in_tiny_run(tmp_path, capsys, text=LEARNABLE, optimizer={"kind": "adamw", "lr": 1e-9})
    assert words.count("the model learns nothing") == 1, words


@pytest.mark.slow
def test_a_far_too_small_rate_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"optimizer": {"kind": "adamw", "lr": 1e-4}, "schedule": {"kind": "constant"}}
    words = find_in_tiny_run(tmp_path, capsys, text=LEARNABLE, **small)
    assert "training.optimizer.lr is probably far too small" in words


@pytest.mark.slow
def test_overfitting_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memorized = {"optimizer": {"kind": "adamw", "lr": 0.02}, "max_steps": 240}
    words = find_in_tiny_run(tmp_path, capsys, text=RANDOM_TEXT[:300], **memorized)
    assert words.count("the model memorizes its data") == 1, words


@pytest.mark.slow
def test_an_easy_validation_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(RANDOM_TEXT[n : n + 20] + "a" * 20 for n in range(0, 2000, 20)) + "a" * 450
    words = find_in_tiny_run(tmp_path, capsys, text=text, optimizer={"kind": "adamw", "lr": 0.02})
    assert "the validation data is easier than the training data" in words


@pytest.mark.slow
def test_too_few_tokens_per_parameter_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = {"stack": {"d_model": 128, "n_layers": 2, "dropout": NO_DROPOUT}}
    words = find_in_tiny_run(tmp_path, capsys, text=LEARNABLE, changes={"model": stack}, max_steps=20)
    assert "tokens per parameter, but about 20 are usual: use a smaller model" in words


@pytest.mark.slow
def test_a_healthy_tiny_run_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_in_tiny_run(tmp_path, capsys, text=LEARNABLE) == ""


@pytest.mark.slow
def test_a_resumed_run_does_not_repeat_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memorized = {"optimizer": {"kind": "adamw", "lr": 0.02}, "max_steps": 240}
    assert "memorizes" in find_in_tiny_run(tmp_path, capsys, text=RANDOM_TEXT[:300], **memorized)
    train(read_recipe(tmp_path / "run"), tmp_path / "run", Resume(More(24)))
    output = capsys.readouterr().err
    assert "resuming at step 241" in output
    assert "memorizes" not in output


@pytest.mark.parametrize("path", HEALTHY_RUNS, ids=lambda path: path.stem)
def test_healthy_runs_are_silent(path: Path) -> None:
    facts, columns = json.loads(path.with_suffix(".json").read_text()), read_metrics(path)
    for step, _ in columns["val/loss"]:
        assert names_after(columns, step, **facts) == set(), step


def test_there_are_ten_healthy_runs_of_all_tasks() -> None:
    assert len(HEALTHY_RUNS) >= 10
    kinds = {json.loads(path.with_suffix(".json").read_text())["best_by"] for path in HEALTHY_RUNS}
    assert {"loss", "bleu", "f1", "ndcg_at_10"} <= kinds


def test_a_loss_that_rises_while_the_selecting_metric_improves_is_no_overfitting() -> None:
    columns: Columns = {name: [] for name in COLUMNS[1:]}
    columns["train/loss"] = [(step, 4 - step / 100) for step in range(10, 310, 10)]
    columns["val/loss"] = [(step, 3 + abs(step - 150) / 100) for step in range(50, 310, 50)]
    columns["val/bleu"] = [(step, step / 10) for step in range(50, 310, 50)]
    facts = {"warmup_steps": 0, "total_steps": 300}
    assert names_after(columns, 300, **facts, best_by="bleu") == set()
    assert names_after(columns, 300, **facts, best_by="loss") == {"overfitting"}


@given(st.lists(st.floats(-1e9, 1e9), max_size=30), st.integers(0, 40), st.integers(0, 40))
def test_any_numbers_can_be_checked(losses: list[float], warmup_steps: int, total_steps: int) -> None:
    columns: Columns = {name: list(enumerate(losses, 1)) for name in COLUMNS[1:]}
    names_after(columns, 100, warmup_steps=warmup_steps, total_steps=total_steps, best_by="bleu", parameters=7)
    names_after({name: [] for name in COLUMNS[1:]}, 100, warmup_steps=warmup_steps, total_steps=total_steps)

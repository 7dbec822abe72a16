"""A run that pauses after a step, and continues as if it had not."""

from pathlib import Path

import pytest
from tiny_runs import TINY, assert_same_run, tiny_recipe

from tercet.checkpoint.run_record import read_record
from tercet.training import train
from tercet.training.request import ResolvedRecipe
from tercet.training.run.train import train_resolved
from tercet.training.run_folder.choices import Resume, Until


@pytest.mark.parametrize("family", TINY)
def test_a_run_that_paused_is_the_run_without_a_pause(family: str, tmp_path: Path) -> None:
    recipe = TINY[family](tmp_path)
    whole = train(recipe, tmp_path / "whole", quiet=True)
    resolved = ResolvedRecipe(recipe=recipe, folder=tmp_path / "paused")
    paused = train_resolved(resolved, quiet=True, pause_at=5)
    record = read_record(paused)
    assert record is not None
    assert (record.saved, record.finished) == (5, False)
    train_resolved(resolved, quiet=True, pause_at=5)  # it is not trained again, and not finished
    assert (record := read_record(paused)) is not None
    assert (record.saved, record.finished) == (5, False)
    train_resolved(resolved, quiet=True)
    assert_same_run(whole, paused)


def test_a_pause_at_the_last_step_is_the_end(tmp_path: Path) -> None:
    resolved = ResolvedRecipe(recipe=tiny_recipe(tmp_path), folder=tmp_path / "run")
    record = read_record(train_resolved(resolved, quiet=True, pause_at=12))
    assert record is not None
    assert (record.saved, record.finished) == (12, True)


def test_the_length_changes_at_a_pause(tmp_path: Path) -> None:
    resolved = ResolvedRecipe(recipe=tiny_recipe(tmp_path), folder=tmp_path / "run")
    train_resolved(resolved, quiet=True, pause_at=5)
    record = read_record(train_resolved(resolved, Resume(Until(9)), quiet=True))
    assert record is not None
    assert (record.saved, record.finished, [change.step for change in record.changes][:1]) == (9, True, [5])

"""A search with a sealed test part: one recorded call, whose scores are those of `tercet evaluate`."""

from pathlib import Path
from typing import Any

import pytest
from tiny_runs import recipe_writer

import tercet
from tercet.checkpoint import load_model
from tercet.cli.main import main
from tercet.config import UserError
from tercet.data.sealing.seal_record import read_seal
from tercet.evaluate import evaluation_of
from tercet.evaluate.spreads import seed_difference
from tercet.training.sweep.sealed_scores import NAMES

LENGTH = {"max_steps": 9, "validate_every": 1, "save_every": 9}


def sweep(recipe: str, folder: Path, **settings: Any) -> Any:
    return tercet.sweep(
        recipe, vary={"training.optimizer.lr": [0.01, 0.02, 0.03]}, sampler="grid", seeds=2, out=folder / "out",
        sealed=folder / "sealed", quiet=True, **settings,
    )  # fmt: skip


@pytest.mark.slow
def test_both_variants_are_scored_on_the_sealed_part_in_one_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_writer(tmp_path, sample_tokens=0, **LENGTH)("text")
    tercet.seal_data(tmp_path / "text.txt", tmp_path / "sealed", fraction=0.3, calls=1)
    train = str(tmp_path / "sealed" / "train.txt")
    result = sweep(recipe, tmp_path, data=train)
    sealed = result.confirmation.sealed
    folders = {
        changed: [folder for folder in sorted((tmp_path / "out" / "confirmation").iterdir()) if folder.is_dir()
                  and folder.name.startswith("text,") != changed]
        for changed in (True, False)
    }  # fmt: skip
    values = {
        changed: [
            getattr(evaluation_of(load_model(run)).evaluate(tmp_path / "sealed" / "test.txt"), NAMES[sealed.measure])
            for run in runs
        ]
        for changed, runs in folders.items()
    }
    assert sealed.measure == result.confirmation.measure == "nats_per_token"
    assert sealed.difference == seed_difference(values[True], values[False])
    assert sealed.leaked == 0
    assert len(read_seal(tmp_path / "sealed").calls) == 1
    assert sweep(recipe, tmp_path, data=train).confirmation.sealed == sealed  # without a second call
    assert "Sealed test part: call 1 of 1; 4 models scored on this part so far." in str(result.view())
    assert result.to_dict()["confirmation"]["sealed"]["difference"]["p_value"] == sealed.difference.p_value
    words = ["sweep", recipe, "--vary", "training.optimizer.lr=0.01,0.02", "--sealed", str(tmp_path / "sealed")]
    assert main([*words, "--out", str(tmp_path / "other"), "--sampler", "grid"]) == 2
    assert "all 1 allowed call" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_folder_without_a_seal_is_rejected_before_the_search(tmp_path: Path) -> None:
    recipe = recipe_writer(tmp_path, sample_tokens=0, **LENGTH)("text")
    with pytest.raises(UserError, match=r"sealed has no seal\.json"):
        sweep(recipe, tmp_path)
    assert not (tmp_path / "out").exists()

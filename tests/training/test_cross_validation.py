"""Cross-validation by `compare`: one run per fold, resumed after an interruption, scored on its fold."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import PAIRS, recipe_writer, tiny_labels_recipe, tiny_recipe

import tercet
from tercet.checkpoint import load_model
from tercet.config import UserError
from tercet.data import Fold
from tercet.evaluate import evaluation_of
from tercet.evaluate.spreads import FoldSpread
from tercet.settings_yaml import write_yaml
from tercet.training import Interrupted
from tercet.training.sweep import compare_runs as comparing
from tercet.training.sweep import sweep as sweeping
from tercet.training.sweep.compare_runs import ComparedRuns, compare_runs
from tercet.training.sweep.grid import VariedKey
from tercet.training.sweep.sweep import plan_sweep

TWO = [VariedKey.of("model.stack.n_layers", [1, 2])]
LENGTH = {"max_steps": 4, "validate_every": 2, "save_every": 2}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that writes the YAML file of a tiny recipe of each kind."""
    return recipe_writer(tmp_path_factory.mktemp("recipes"), **LENGTH)


@pytest.fixture(scope="module")
def comparison(recipes: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> ComparedRuns:
    """Return an uninterrupted cross-validation of two classifiers in three folds."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return compare_runs([recipes("labels")], varied_keys=TWO, folds=3, out=out, quiet=True)


def scores(result: ComparedRuns) -> list[tuple[str, int | None, dict[str, float]]]:
    return [(run.name, run.fold, run.scores.scores) for row in result.rows for run in row.runs if run.scores]


@pytest.mark.slow
def test_each_fold_is_a_run_that_is_scored_on_the_fold(comparison: ComparedRuns) -> None:
    folders = sorted(path.name for path in comparison.folder.iterdir() if path.is_dir())
    assert folders == [f"n_layers={layers},seed=1,fold={fold}" for layers in (1, 2) for fold in (1, 2, 3)]
    counts = list[int]()
    for run in comparison.rows[0].runs:
        evaluation = evaluation_of(load_model(run.folder))
        assert run.scores is not None
        assert run.scores.scores["accuracy"] == evaluation.evaluate().accuracy
        counts.append(len(evaluation.load_held_out()))
    assert sorted(counts) == [len(PAIRS) // 3 + extra for extra in (0, 0, 1)]
    accuracy = comparison.rows[0].scores["accuracy"]
    assert isinstance(accuracy, FoldSpread)
    correct = [
        run.scores.scores["accuracy"] * count
        for run, count in zip(comparison.rows[0].runs, counts, strict=True)
        if run.scores
    ]
    assert accuracy.pooled == pytest.approx(sum(correct) / len(PAIRS))
    assert [row.rank for row in comparison.rows] == [1, 2]
    table = json.loads((comparison.folder / "comparison.json").read_text())
    losses = [run["nats_per_label"] for run in table["rows"][0]["runs"]]
    assert table["rows"][0]["nats_per_label"]["mean"] == pytest.approx(np.mean(losses))
    assert table["differences"].keys() == {comparison.rows[1].name}
    assert "line: mean over folds" in comparison.plot().get_suptitle()


@pytest.mark.slow
def test_interrupted_after_one_fold_it_ends_with_the_same_scores(
    comparison: ComparedRuns, recipes: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, trained = sweeping.train, list[str]()

    def interrupt(recipe: Any, folder: Path, **settings: Any) -> Path:
        if trained:
            raise Interrupted(signal.SIGINT, "saved")
        trained.append(folder.name)
        return real(recipe, folder, **settings)

    out = tmp_path / "out"
    monkeypatch.setattr(sweeping, "train", interrupt)
    with pytest.raises(Interrupted):
        compare_runs([recipes("labels")], varied_keys=TWO, folds=3, out=out, quiet=True)
    monkeypatch.setattr(sweeping, "train", real)
    first_run = out / trained[0] / "last" / "model.safetensors"
    saved_at = first_run.stat().st_mtime_ns
    resumed = compare_runs([recipes("labels")], varied_keys=TWO, folds=3, out=out, quiet=True)
    assert scores(resumed) == scores(comparison)
    assert first_run.stat().st_mtime_ns == saved_at


@pytest.mark.slow
def test_only_runs_of_one_fold_are_scored_together(
    comparison: ComparedRuns, recipes: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores on the shortest held-out text of several runs would be scores on training data of other folds."""
    real, calls = comparing.score_held_out, list[list[str]]()

    def record(folders: list[Path], **settings: Any) -> Any:
        calls.append([folder.name for folder in folders])
        return real(folders, **settings)

    monkeypatch.setattr(comparing, "score_held_out", record)
    compare_runs([recipes("labels")], varied_keys=TWO, folds=3, out=comparison.folder, quiet=True)
    assert calls == [[f"n_layers={layers},seed=1,fold={fold}" for layers in (1, 2)] for fold in (1, 2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["text", "pairs", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("masked", "chat"))]
)
def test_other_families(recipes: Callable[[str], str], tmp_path: Path, kind: str) -> None:
    changes = {"data": {"documents": "line"}} if kind in ("text", "masked") else {}
    result = compare_runs([recipes(kind)], folds=2, changes=changes, out=tmp_path / "out", quiet=True)
    (row,) = result.rows
    assert [run.fold for run in row.runs] == [1, 2]
    assert len({run.scores.text for run in row.runs if run.scores}) == 2
    assert list(result.leaderboard.ranked_by.values()) != [None]


def test_python_plans_folds_of_each_seed(recipes: Callable[[str], str], tmp_path: Path) -> None:
    sweep = plan_sweep([recipes("labels")], seeds=[1, 2], folds=3, out=tmp_path / "out")
    validations = [run.recipe.data.validation for run in sweep.runs if run.recipe]
    assert validations == [Fold(folds=3, fold=fold, seed=seed) for seed in (1, 2) for fold in (1, 2, 3)]
    assert sweep.runs[0].name == "labels, seed=1, fold=1"
    with pytest.raises(UserError, match=r"--folds: folds=1 must be at least 2"):
        tercet.compare(recipes("labels"), folds=1, out=tmp_path / "out")


def error_message(work: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        work()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_invalid_folds_are_rejected_before_training(
    recipes: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "train", lambda *_, **__: pytest.fail("trained"))
    out = tmp_path / "out"
    validation = {"kind": "held_out", "source": "more.jsonl"}
    held_out = tmp_path / "mine.yaml"
    held_out.write_text(write_yaml(tiny_labels_recipe(tmp_path, {"data": {"validation": validation}})))
    message = error_message(lambda: plan_sweep([str(held_out)], folds=3, out=out))
    assert message.startswith("mine has a separate validation source, more.jsonl, which --folds would not use; ")
    assert "pass --set data.validation=drawn; to divide both, join them into one data.source" in message
    plan_sweep([str(held_out)], folds=3, changes={"data": {"validation": "drawn"}}, out=out)
    text = tmp_path / "text.yaml"
    text.write_text(write_yaml(tiny_recipe(tmp_path, {"data": {"validation": {**validation, "source": "b.txt"}}})))
    assert "data.validation=documents" in error_message(lambda: plan_sweep([str(text)], folds=3, out=out))
    varied_keys = [VariedKey.of("data.validation.count", [1, 2])]
    assert "--vary data.validation.count and --folds both set the validation part" in error_message(
        lambda: plan_sweep([recipes("labels")], varied_keys=varied_keys, folds=3, out=out)
    )
    labels = recipes("labels")
    assert "--folds applies only to recipes, and" in error_message(
        lambda: plan_sweep([labels, str(Path(labels).parent)], folds=3, out=out)
    )
    assert error_message(lambda: compare_runs([labels], folds=200, out=out, quiet=True)).startswith(
        "labels, seed=1, fold=1: "
    )
    assert not out.exists()


def test_other_number_of_folds_is_another_comparison(comparison: ComparedRuns, recipes: Callable[[str], str]) -> None:
    words = error_message(lambda: plan_sweep([recipes("labels")], varied_keys=TWO, folds=4, out=comparison.folder))
    assert "contains a comparison with other settings (folds: 3 -> 4); pass another --out" in words


def test_named_dataset_reports_that_its_validation_part_is_not_used(tmp_path: Path) -> None:
    (note,) = plan_sweep(["classify-docstrings"], folds=2, out=tmp_path / "out").notes
    assert note == "python-docstrings: the folds divide its training part; its validation part is not used"

"""`tercet train RUN` with a run folder instead of a recipe, --more, --until and --set; and the Python API."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import CHECKPOINT, assert_same_run, child, dies_at_rename, exit_code, resume_state, tiny_recipe

import tercet
from tercet.checkpoint.run_record import read_record
from tercet.cli.main import main
from tercet.config import UserError
from tercet.storage import lock_folder, read_sealed_json, write_sealed_json
from tercet.training import read_recipe, train
from tercet.training.request import RunRequest, find_run, resolve

FinishedRun = Callable[[str], Path]


def read_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


def error_message(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the one line on stderr of a command that must exit with 2."""
    assert main(["train", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.fixture
def run(finished_run: FinishedRun, tmp_path: Path) -> Path:
    """Return a finished run of 12 steps."""
    return shutil.copytree(finished_run("text"), tmp_path / "run")


@pytest.mark.slow
def test_stopped_run_is_resumed_by_its_folder(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, recipe = tmp_path / "run", read_recipe(finished_run("text"))

    def work() -> None:
        dies_at_rename(1, after=True, name=CHECKPOINT)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) < 0
    assert main(["train", str(out)]) == 0
    output = capsys.readouterr()
    assert "resuming at step 5 of 12\n" in output.err
    assert output.out.startswith(f"The run is in {out}; ")
    assert_same_run(finished_run("text"), out)
    assert main(["train", str(out), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_more_until_and_set(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(run), "--more", "1", "--set", "training.keep=3"]) == 0
    assert "changed: training.max_steps 12 -> 13, training.keep 2 -> 3\n" in capsys.readouterr().err
    assert main(["train", str(run), "--until", "14", "--out", str(run)]) == 0
    assert main(["train", str(run), "--until", "14"]) == 0
    assert "is already finished: it ended at step 14; pass --more STEPS to train longer" in capsys.readouterr().err
    assert tercet.train(run, start=tercet.Resume(tercet.More(1)), quiet=True).folder == run / "best"
    tercet.train(run, start=tercet.Resume(tercet.Until(16)), changes={"training.patience": 9}, quiet=True)
    record = read_record(run)
    assert record is not None
    assert (record.steps, record.total_steps, record.saved, record.finished) == (12, 16, 16, True)
    assert [change.step for change in record.changes] == [12, 12, 13, 14, 15, 15]
    assert main(["train", str(run), "--print-config"]) == 0
    assert "  max_steps: 16\n" in capsys.readouterr().out
    assert main(["doctor", "--verify", str(run)]) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--more", "0"], "argument --more: 0 must be at least 1"),
        (["--more", "1.5"], "argument --more: invalid int value: '1.5'"),
        (["--until", "12.0"], "argument --until: invalid int value"),
        (["--until", "9"], "already has 12 steps, but 9 requested; choose a larger number"),
        (["--set", "training.max_steps=11"], "already has 12 steps, but 11 requested"),
        (["--more", "1000000000"], "max_steps=1000000012 must be at least 1 and at most 1,000,000,000"),
        (["--more", "5", "--restart"], "--restart and --more exclude each other; pass one of them"),
        (["--until", "50", "--restart"], "--restart and --until exclude each other; pass one of them"),
        (["--more", "5", "--until", "20"], "--more and --until exclude each other; pass one of them"),
        (
            ["--more", "5", "--set", "training.max_epochs=9"],
            "--more conflicts with another length in the recipe or in --set",
        ),
        (["--more", "5", "--exact"], "exactly: learning rate (cosine)"),
        (["--more", "5", "--out", "elsewhere"], "is a run, which is resumed in its own folder; omit --out"),
        (["--set", "training.seed=3"], "other settings (training.seed: 1 -> 3); pass another --out"),
        (["--set", "training.max_hours=3"], "cannot change max_hours of a started run"),
        (["--set", "training.patience=0"], "training.patience=0 must be at least 1"),
    ],
)
def test_rejected_command_changes_no_file(
    finished_run: FinishedRun, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run("text")
    before = read_files(run)
    assert words in error_message(capsys, run, *flags)
    assert read_files(run) == before
    assert not Path("elsewhere").exists()


def test_folders_without_a_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    words = f"{tmp_path / 'empty'} contains no run: it has neither run.json nor readable data; pass a run folder, or a "
    assert words in error_message(capsys, tmp_path / "empty", "--more", "5")
    assert "last contains no run: it has neither run.json" in error_message(capsys, run / "last", "--more", "5")
    assert "unknown recipe" in error_message(capsys, tmp_path / "nothing", "--more", "5")
    assert list((tmp_path / "empty").iterdir()) == []
    (run / "recipe.yaml").rename(tmp_path / "recipe.yaml")
    assert "recipe.yaml is missing; put it back" in error_message(capsys, run, "--more", "5")
    (tmp_path / "recipe.yaml").rename(run / "recipe.yaml")
    (run / "run.json").unlink()
    assert "run.json is missing; restore it, or remove " in error_message(capsys, run, "--more", "5")
    new = tmp_path / "new"
    assert "--more: no run to extend in" in error_message(capsys, run / "recipe.yaml", "--out", new, "--more", "5")
    assert not new.exists()


def test_run_in_training_is_not_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_files(run)
    with lock_folder(run):
        assert f"run is in use by process {os.getpid()} on " in error_message(capsys, run, "--more", "5")
    assert read_files(run) == before


@pytest.mark.slow
def test_a_damaged_record_leaves_the_choices_and_a_restart(
    run: Path, finished_run: FinishedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "run.json"
    path.write_text(path.read_text().replace("12", "13", 1))
    assert "run.json is damaged; restore the original file; or remove " in error_message(capsys, run)
    assert main(["train", str(run), "--restart", "--quiet"]) == 0
    assert_same_run(finished_run("text"), run)


@pytest.mark.parametrize(
    "changes", [[{"step": 1}], [3], "many", [{"step": 1.5, "key": "training.keep", "old": 1, "new": 2}]]
)
def test_unchanged_values_are_no_changes(run: Path, changes: Any) -> None:
    write_sealed_json(run / "run.json", {**read_sealed_json(run / "run.json"), "changes": changes})
    with pytest.raises(UserError, match="was written by another version of Tercet"):
        read_recipe(run)


@pytest.mark.parametrize(
    ("key", "new", "words"),
    [
        ("training.seed", 3, "'training.seed' cannot change"),
        ("training.keep", "all", "training.keep: input should be a valid integer"),
        ("logging.tracker", 3, "logging.tracker"),
    ],
)
def test_changes_that_do_not_fit(run: Path, key: str, new: Any, words: str) -> None:
    change = {"step": 12, "key": key, "old": None, "new": new}
    write_sealed_json(run / "run.json", {**read_sealed_json(run / "run.json"), "changes": [change]})
    with pytest.raises(UserError, match=rf"run\.json: changes: .*{words}"):
        read_recipe(run)


@pytest.mark.slow
def test_from_weights_extends_a_finished_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "checkpoints")
    assert "pass --from-weights to continue" in error_message(capsys, run, "--more", "2")
    assert main(["train", str(run), "--more", "2", "--from-weights"]) == 0
    assert "resuming at step 13 of 14\n" in capsys.readouterr().err
    assert resume_state(run)["global_step"] == 14


def test_recipe_takes_precedence_over_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_recipe(tmp_path, max_steps=1, sample_tokens=0), tmp_path / "demo", quiet=True)
    monkeypatch.chdir(tmp_path)
    assert find_run("demo") is None
    assert find_run("./demo") == Path("demo")
    assert resolve(RunRequest(recipe="demo")).folder == Path("runs/demo")

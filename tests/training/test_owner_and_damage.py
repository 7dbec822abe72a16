"""A run resumes only from undamaged files of the same run, with the same arithmetic, and has one trainer at a time."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_runs import CHECKPOINT, TINY, assert_same_run, child, dies_at_rename, exit_code, newest_checkpoint, weights

from tercet.checkpoint import load_model
from tercet.checkpoint.metrics import read_metrics
from tercet.checkpoint.run_record import read_record
from tercet.cli.main import main
from tercet.config import UserError
from tercet.settings_yaml import write_yaml
from tercet.storage import lock_folder
from tercet.training import read_recipe, train
from tercet.training.run_folder import arithmetic
from tercet.training.run_folder.choices import FromWeights, Restart, Resume
from tercet.training.run_folder.restart import ASIDE

FinishedRun = Callable[[str], Path]


def stop_at(step: int, finished_run: Path, out: Path) -> Path:
    """Create a run of the same recipe that was killed right after its save at `step`."""
    recipe = read_recipe(finished_run)

    def work() -> None:
        dies_at_rename(step // 4, after=True, name=CHECKPOINT)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) < 0
    return out


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["pairs", *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ("text", "masked"))]
)
def test_damaged_checkpoint_is_skipped(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    out = stop_at(8, finished_run(family), tmp_path / "run")
    assert newest_checkpoint(out).name == "step-000008"
    flip(newest_checkpoint(out) / "state.ckpt")
    train(read_recipe(out), out, quiet=True)
    assert "step-000008/state.ckpt is damaged" in (stderr := capsys.readouterr().err)
    assert "resuming from the checkpoint of step 4" in stderr
    assert_same_run(finished_run(family), out)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-000008", "step-000012"]


@pytest.mark.slow
def test_without_any_checkpoint_there_are_choices(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stop_at(8, finished_run("text"), tmp_path / "run")
    recipe = read_recipe(out)
    (tmp_path / "recipe.yaml").write_text(write_yaml(recipe))
    command = ["train", str(tmp_path / "recipe.yaml"), "--out", str(out)]
    shutil.rmtree(out / "checkpoints")
    assert main(command) == 2
    # The run was killed at step 8 after the save, before it was recorded.
    assert "run: 4 steps were trained, but" in (err := capsys.readouterr().err)
    assert "pass --from-weights to continue from its last model, or --restart to delete it and start again" in err
    assert err.count("\n") == 1
    assert main([*command, "--from-weights", "--exact"]) == 2
    assert "exclude each other" in capsys.readouterr().err

    run_copy = shutil.copytree(out, tmp_path / "other")
    assert main([*command, "--from-weights"]) == 0
    err = capsys.readouterr().err
    assert "resuming at step 9 of 12" in err
    assert f"only the weights in {out}/last could be recovered" in err
    assert load_model(out / "last").card.step == 12
    assert weights(out) != weights(finished_run("text"))
    assert [line.partition(",")[0] for line in (out / "metrics.csv").read_text().splitlines()[1:]] == [
        str(step) for step in range(1, 13)
    ]

    (run_copy / "notes.txt").write_text("mine")
    assert main([*command[:-1], str(run_copy), "--restart"]) == 0
    assert_same_run(finished_run("text"), run_copy)
    assert (run_copy / "notes.txt").read_text() == "mine"

    early_run = stop_at(4, finished_run("text"), tmp_path / "third")
    with pytest.raises(UserError, match=r"has an undamaged checkpoint of step 4; leave out --from-weights"):
        train(recipe, early_run, FromWeights(), quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["last", "best"])
def test_models_saved_before_a_kill_are_verified_at_the_end(
    finished_run: FinishedRun, tmp_path: Path, model: str
) -> None:
    """No step is left, so neither model is written again."""
    out = stop_at(12, finished_run("text"), tmp_path / "run")
    flip(out / model / "model.safetensors")
    with pytest.raises(UserError, match=rf"{model}/model.safetensors is damaged"):
        train(read_recipe(out), out, quiet=True)


@pytest.mark.exhaustive
def test_from_weights_uses_best_if_last_is_damaged(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stop_at(8, finished_run("text"), tmp_path / "run")
    for checkpoint in (out / "checkpoints").iterdir():
        flip(checkpoint / "state.ckpt")
    flip(out / "last" / "model.safetensors")
    best = load_model(out / "best").card.step
    train(read_recipe(out), out, FromWeights(), quiet=True)
    assert f"; using the weights of step {best}\n" in capsys.readouterr().err
    assert load_model(out / "last").card.step == 12
    shutil.rmtree(out)
    out = stop_at(8, finished_run("text"), tmp_path / "run")
    shutil.rmtree(out / "checkpoints")
    flip(out / "last" / "model.safetensors")
    flip(out / "best" / "tokenizer.json")
    words = r"last/model\.safetensors is damaged.*; .*best/tokenizer\.json is damaged.*--restart"
    with pytest.raises(UserError, match=words):
        train(read_recipe(out), out, FromWeights(), quiet=True)


@pytest.mark.slow
def test_checkpoint_of_another_run_is_ignored(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stop_at(8, finished_run("text"), tmp_path / "run")
    other_run = train(TINY["text"](tmp_path, seed=5), tmp_path / "other", quiet=True)
    shutil.rmtree(newest_checkpoint(out))
    shutil.copytree(other_run / "checkpoints" / "step-000008", out / "checkpoints" / "step-000008")
    train(read_recipe(out), out, quiet=True)
    assert "step-000008 contains the state of another run" in capsys.readouterr().err
    assert_same_run(finished_run("text"), out)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_damaged_metrics_are_restored(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    out = stop_at(8, finished_run("text"), tmp_path / "run")
    if damage == "missing":
        (out / "metrics.csv").unlink()
    else:
        flip(out / "metrics.csv")
        with pytest.raises(UserError, match=r"metrics\.csv is damaged"):
            read_metrics(out / "metrics.csv")
    train(read_recipe(out), out, quiet=True)
    assert "metrics.csv was damaged or missing; restored to step 8" in capsys.readouterr().err
    assert_same_run(finished_run("text"), out)


@pytest.mark.parametrize("name", ["recipe.yaml", "run.json"])
def test_damaged_recipe_or_record_is_reported(finished_run: FinishedRun, tmp_path: Path, name: str) -> None:
    out, recipe = tmp_path / "run", read_recipe(finished_run("text"))
    shutil.copytree(finished_run("text"), out)
    path = out / name
    path.write_text(path.read_text().replace("12", "13", 1))
    with pytest.raises(UserError, match=rf"{name} is damaged"):
        train(recipe, out, quiet=True)
    path.unlink()
    with pytest.raises(UserError, match=rf"{name} is missing; .*--restart to delete"):
        train(recipe, out, quiet=True)


@pytest.mark.slow
def test_a_damaged_record_leaves_the_choices(finished_run: FinishedRun, tmp_path: Path) -> None:
    out, recipe = stop_at(8, finished_run("text"), tmp_path / "run"), read_recipe(finished_run("text"))
    flip(out / "run.json")
    with pytest.raises(UserError, match=r"run\.json is damaged.*; or remove .*checkpoints and pass --from-weights"):
        train(recipe, out, quiet=True)
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(UserError, match=r"run\.json is damaged.*; or pass --from-weights .*, or --restart"):
        train(recipe, out, quiet=True)
    train(recipe, out, FromWeights(), quiet=True)
    assert load_model(out / "last").card.step == 12


@pytest.mark.exhaustive
def test_changed_arithmetic_is_reported(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stop_at(8, finished_run("text"), tmp_path / "run")
    copy = shutil.copytree(out, tmp_path / "copy")
    monkeypatch.setattr(arithmetic, "build_id", lambda: "other")
    recipe = read_recipe(out)
    with pytest.raises(
        UserError, match=r"cannot resume .* exactly: kernels .*, now other; undo the change, or omit --exact"
    ):
        train(recipe, out, Resume(exact=True), quiet=True)
    capsys.readouterr()
    train(recipe, out, quiet=True)
    assert "now other: up to rounding, the run ends as an uninterrupted run would" in capsys.readouterr().err
    monkeypatch.undo()
    state = torch.load(newest_checkpoint(out) / "state.ckpt", weights_only=True)
    assert [entry["kernels"] for entry in state["arithmetic"]][1:] == ["other"]
    train(recipe, copy, Resume(exact=True), quiet=True)
    assert capsys.readouterr().err == ""
    assert_same_run(finished_run("text"), copy)


def test_changes_are_found_in_all_of_the_past() -> None:
    current, previous = {"threads": "2"}, {"threads": "4", "isa": "avx2"}
    assert arithmetic.find_changes([], current) == []
    assert arithmetic.find_changes([current], current) == []
    assert arithmetic.find_changes([previous], current) == ["threads 4, now 2", "isa avx2, now unset"]
    assert arithmetic.find_changes([previous, current], current) == ["threads 4, now 2", "isa avx2, now unset"]


@pytest.mark.slow
def test_a_restart_keeps_the_run_if_the_data_cannot_be_used(
    finished_run: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, recipe = shutil.copytree(finished_run("text"), tmp_path / "run"), read_recipe(finished_run("text"))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (tmp_path / "short.txt").write_text("a")
    changed = replace(recipe, data=replace(recipe.data, source=str(tmp_path / "short.txt")))
    with pytest.raises(UserError, match="too few to hold out"):
        train(changed, out, Restart(), quiet=True)

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tercet.training.run.start.read_or_create_record", stop)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, out, Restart(), quiet=True)
    assert {path: path.read_bytes() for path in before} == before
    assert not (out / ASIDE).exists()

    (out / ASIDE / "last").mkdir(parents=True)  # of a restart that was killed
    train(changed_steps := replace(recipe, training=replace(recipe.training, max_steps=1)), out, Restart(), quiet=True)
    assert read_recipe(out) == changed_steps
    assert not (out / ASIDE).exists()


@pytest.mark.slow
def test_second_trainer_is_rejected(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stop_at(8, finished_run("text"), tmp_path / "run")
    (tmp_path / "recipe.yaml").write_text(write_yaml(read_recipe(out)))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name[0] != "."}
    with lock_folder(out):
        for flags in ([], ["--restart"], ["--from-weights"]):
            assert main(["train", str(tmp_path / "recipe.yaml"), "--out", str(out), *flags]) == 2
            err = capsys.readouterr().err
            assert f"run is in use by process {os.getpid()} on " in err
            assert err.count("\n") == 1
        assert load_model(out).card.step == 6  # readers are not blocked
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_two_concurrent_starts(finished_run: FinishedRun, tmp_path: Path) -> None:
    recipe, out = read_recipe(finished_run("text")), tmp_path / "run"
    pids = [child(lambda: train(recipe, out, quiet=True)) for _ in range(2)]
    assert sorted(exit_code(pid) for pid in pids) in (
        [0, 0],
        [0, 1],
    )  # if the first has finished already, the second detects it
    assert_same_run(finished_run("text"), out)


@pytest.mark.slow
def test_a_reader_sees_one_state_at_every_save(finished_run: FinishedRun, tmp_path: Path) -> None:
    out, recipe = tmp_path / "run", read_recipe(finished_run("text"))
    steps: dict[int, set[bytes]] = {}
    pid = child(lambda: train(recipe, out, quiet=True))
    deadline = time.monotonic() + 100
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
        for folder in (out / "best", out / "last"):
            if folder.exists():
                trained_model = load_model(folder)
                weight = trained_model.model.state_dict()["embedding.weight"].numpy().tobytes()
                steps.setdefault(trained_model.card.step, set()).add(weight)
    assert len(steps) > 1
    assert all(len(states) == 1 for states in steps.values())


@pytest.mark.slow
def test_number_of_kept_checkpoints_is_limited(tmp_path: Path) -> None:
    out = train(TINY["text"](tmp_path, keep=1), tmp_path / "run", quiet=True)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-000012"]
    record = read_record(out)
    assert record is not None
    assert (record.saved, record.finished) == (12, True)
    train(TINY["text"](tmp_path, keep=3), out, quiet=True)  # the number of kept checkpoints may change

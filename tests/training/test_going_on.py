"""Runs that are extended or continued with a changed setting: their results and messages."""

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import (
    CHECKPOINT,
    TINY,
    assert_same_run,
    child,
    dies_at_rename,
    exit_code,
    figures,
    newest_checkpoint,
    resume_state,
    tiny_recipe,
    weights,
)

from tercet.checkpoint import load_model
from tercet.checkpoint.run_record import read_record
from tercet.cli.train import summary
from tercet.config import UserError
from tercet.training import Recipe, read_recipe, train
from tercet.training.optim.schedules import rate_factor
from tercet.training.request import ResolvedRecipe
from tercet.training.run.train import train_resolved
from tercet.training.run_folder.choices import More, Resume, Until

FinishedRun = Callable[[str], Path]
CONSTANT: dict[str, Any] = {"schedule": "constant"}
STUCK: dict[str, Any] = {"optimizer": {"kind": "adam", "lr": 0.0}, "patience": 2, "validate_every": 2, "max_steps": 30}


def killed_run(recipe: Recipe, out: Path, saves: int = 2) -> Path:
    """Return a run that was killed right after `saves` saves, at intervals of four steps."""

    def work() -> None:
        dies_at_rename(saves, after=True, name=CHECKPOINT)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    return out


def changes(out: Path) -> list[tuple[int, str, Any, Any]]:
    record = read_record(out)
    assert record is not None
    return [(change.step, change.key, change.old, change.new) for change in record.changes]


@pytest.mark.slow
def test_extended_run_equals_run_of_that_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = train(tiny_recipe(tmp_path, **CONSTANT), tmp_path / "run", quiet=True)
    original_recipe = (out / "recipe.yaml").read_bytes()
    train(tiny_recipe(tmp_path, **CONSTANT), out, Resume(More(4), exact=True))
    assert_same_run(train(tiny_recipe(tmp_path, max_steps=16, **CONSTANT), tmp_path / "planned", quiet=True), out)
    output = capsys.readouterr().err
    assert "changed: training.max_steps 12 -> 16\nresuming at step 13 of 16\n" in output
    assert "learning rate (constant): 0.01 at step 13, as if the run had been planned for 16 steps\n" in output
    assert changes(out) == [(12, "training.max_steps", 12, 16)]
    assert read_recipe(out).training.max_steps == 16
    card = load_model(out / "last").card
    assert card.recipe["training"]["max_steps"] == 16
    assert card.changes == [{"step": 12, "key": "training.max_steps", "old": 12, "new": 16, "steps": 16}]
    readme = (out / "last" / "README.md").read_text()
    assert "| 1. after step 12 | training.max_steps: 12 -> 16 |\n" in readme
    assert (out / "recipe.yaml").read_bytes() == original_recipe


@pytest.mark.exhaustive
def test_extended_run_with_constant_rate_equals_longer_run(finished_run: FinishedRun, tmp_path: Path) -> None:
    out = shutil.copytree(finished_run("pairs"), tmp_path / "run")
    train(read_recipe(out), out, Resume(Until(15), exact=True), quiet=True)
    recipe = TINY["pairs"](finished_run("pairs").parent, max_steps=15)
    assert_same_run(train(recipe, tmp_path / "planned", quiet=True), out)


@pytest.mark.slow
def test_run_extended_before_cooldown_equals_longer_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wsd: dict[str, Any] = {"schedule": {"kind": "wsd", "cooldown": 0.25}}
    out = killed_run(tiny_recipe(tmp_path, **wsd), tmp_path / "run")
    train(tiny_recipe(tmp_path, **wsd), out, Resume(Until(16), exact=True))
    assert "resuming at step 9 of 16\n" in capsys.readouterr().err
    assert_same_run(train(tiny_recipe(tmp_path, max_steps=16, **wsd), tmp_path / "planned", quiet=True), out)


@pytest.mark.slow
def test_extension_after_decay_raises_the_rate_with_a_note(
    finished_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(finished_run("text"), tmp_path / "run")
    recipe = read_recipe(out)
    before = read_files(out)
    with pytest.raises(UserError, match=r"cannot change the length of .* exactly: learning rate \(cosine\): .*; omit"):
        train(recipe, out, Resume(More(4), exact=True))
    assert capsys.readouterr().err == ""
    assert read_files(out) == before

    train(recipe, out, Resume(More(4)))
    words = r"learning rate \(cosine\): 0\.001 at step 12, 0\.00(\d+) at step 13, then as in a run of 16 steps; "
    output = re.search(words, capsys.readouterr().err)
    assert output
    spec = recipe.training
    expected = [
        0.01 * rate_factor(spec.schedule, step=step, warmup=2, total=12 if step < 12 else 16) for step in range(16)
    ]
    assert [rate for _, rate in figures(out)["lr"]] == pytest.approx(expected, rel=1e-6)
    assert float(f"0.00{output[1]}") == pytest.approx(expected[12], rel=1e-3)


@pytest.mark.exhaustive
def test_steps_before_a_change_are_replayed_unchanged(finished_run: FinishedRun, tmp_path: Path) -> None:
    """The checkpoint at which the run was extended is lost, and the steps up to it are repeated."""
    expected = shutil.copytree(finished_run("text"), tmp_path / "expected")
    recipe = read_recipe(expected)
    out = shutil.copytree(expected, tmp_path / "run")
    train(recipe, expected, Resume(More(4)), quiet=True)

    def work() -> None:
        dies_at_rename(1, after=False, name=CHECKPOINT)()
        train(recipe, out, Resume(More(4)), quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    shutil.rmtree(newest_checkpoint(out))
    assert newest_checkpoint(out).name == "step-000008"
    train(recipe, out, quiet=True)
    assert_same_run(expected, out)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "after"), [(1, False), (1, True), (2, False)])
def test_killed_while_the_change_is_written(
    finished_run: FinishedRun, tmp_path: Path, number: int, after: bool
) -> None:
    """The run is in the state before or after the change, and the same command does not extend it twice."""
    out = shutil.copytree(finished_run("text"), tmp_path / "run")
    recipe = read_recipe(out)

    def work() -> None:
        dies_at_rename(number, after=after, name="run.json")()
        train(recipe, out, Resume(More(1)), quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    record = read_record(out)
    assert record is not None
    assert (record.finished, len(record.changes)) == ((True, 0) if (number, after) == (1, False) else (False, 1))
    load_model(out)
    train(recipe, out, Resume(More(1)), quiet=True)
    assert resume_state(out)["global_step"] == 13
    assert changes(out) == [(12, "training.max_steps", 12, 13)]


@pytest.mark.slow
def test_epochs_become_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    epochs: dict[str, Any] = {**CONSTANT, "max_steps": None, "sample_tokens": 0}
    out = train(tiny_recipe(tmp_path, max_epochs=1, **epochs), tmp_path / "run", quiet=True)
    first = resume_state(out)["global_step"]
    train_resolved(resolve_current(read_recipe(out), out), Resume(More(1)), quiet=True)
    assert resume_state(out)["global_step"] == first + 1
    assert changes(out) == [(first, "training.max_steps", None, first + 1), (first, "training.max_epochs", 1, None)]
    train(tiny_recipe(tmp_path, max_epochs=2, **epochs), out)
    assert f"resuming at step {first + 2} of {2 * first - 1}\n" in capsys.readouterr().err
    expected_run = train(tiny_recipe(tmp_path, max_epochs=2, **epochs), tmp_path / "planned", quiet=True)
    assert weights(expected_run) == weights(out)
    with pytest.raises(UserError, match=rf"already has {2 * first - 1} steps, but {first} requested"):
        train_resolved(resolve_current(read_changed_recipe(out, max_epochs=1, max_steps=None), out), quiet=True)


def read_changed_recipe(out: Path, **training: Any) -> Recipe:
    recipe = read_recipe(out)
    return replace(recipe, training=replace(recipe.training, **training))


def resolve_current(recipe: Recipe, out: Path) -> ResolvedRecipe:
    """Return the current recipe of the run in a folder."""
    return ResolvedRecipe(recipe=recipe, folder=out, from_run=True)


@pytest.mark.slow
def test_run_out_of_patience_can_be_extended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_recipe(tmp_path, sample_tokens=0, **STUCK)
    out = train(recipe, tmp_path / "run")
    why = "it stopped at step 6 of 30, after 2 validations without improvement"
    assert f"{why}; to continue, pass --more STEPS or a larger training.patience\n" in capsys.readouterr().err
    train(recipe, out)
    assert f"is already finished: {why}; pass --more STEPS to train longer" in capsys.readouterr().err
    train_resolved(resolve_current(read_changed_recipe(out, patience=3), out))
    output = capsys.readouterr().err
    assert "changed: training.patience 2 -> 3\nresuming at step 7 of 30\n" in output
    assert "it stopped at step 8 of 30, after 3 validations without improvement" in output
    train(recipe, out, Resume(More(2)), quiet=True)  # the count of validations starts again
    assert resume_state(out)["global_step"] == 14
    assert resume_state(out)["callbacks"]["StepActions"]["Validation"]["best_step"] == 2
    assert load_model(out).card.step == 2


@pytest.mark.slow
def test_allowed_changes_of_a_stopped_run(tmp_path: Path) -> None:
    out = killed_run(tiny_recipe(tmp_path, **CONSTANT), tmp_path / "run")
    settings = {"validate_every": 5, "save_every": 2, "log_every": 4, "keep": 4, "patience": 50}
    train(tiny_recipe(tmp_path, **CONSTANT, **settings), out, quiet=True)
    assert {key: new for _, key, _, new in changes(out)} == {f"training.{k}": value for k, value in settings.items()}
    assert {step for step, *_ in changes(out)} == {8}
    expected_run = train(tiny_recipe(tmp_path, **CONSTANT), tmp_path / "whole", quiet=True)
    assert weights(out) == weights(expected_run)
    assert len(list((out / "checkpoints").iterdir())) == 4
    assert [step for step, _ in figures(out)["val/loss"]] == [3, 6, 10, 12]
    train(tiny_recipe(tmp_path, **CONSTANT), out, quiet=True)  # the original command reverts no change
    assert len(changes(out)) == len(settings)
    train_resolved(resolve_current(read_changed_recipe(out, keep=2), out), quiet=True)
    assert changes(out)[-1] == (12, "training.keep", 4, 2)
    assert json.loads((out / "run.json").read_text())["changes"][-1] == {
        "step": 12, "key": "training.keep", "old": 4, "new": 2,
    }  # fmt: skip


def read_files(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name[0] != "."}


@pytest.mark.parametrize(
    ("family", "words"),
    [("text", "best validation loss {:.4f}"), ("pairs", "highest BLEU {:.2f}"), ("labels", "highest accuracy {:.1%}")],
)
def test_cards_state_why_a_model_was_kept(finished_run: FinishedRun, family: str, words: str) -> None:
    out = finished_run(family)
    name = {"text": "val/loss", "pairs": "val/bleu", "labels": "val/accuracy"}[family]
    values = [(value if name == "val/loss" else -value, step) for step, value in figures(out)[name]]
    value, step = min(values)  # the first of equal values
    best, last = load_model(out).card, load_model(out / "last").card
    assert (best.kept_as, best.step, last.kept_as, last.step) == ("best", step, "last", 12)
    assert best.choice == words.format(abs(value)) + f" at step {step}"
    assert last.choice == "last, at step 12"
    for folder, card in (("best", best), ("last", last)):
        assert f"| Checkpoint | {card.choice} |\n" in (out / folder / "README.md").read_text()
    output = summary(out).splitlines()[0]
    assert output.startswith(f"The run is in {out}; {words.format(abs(value))}")
    assert output.endswith(f", at step {step}{', the last' if step == 12 else '; last, at step 12'}.")


def test_other_changes_of_a_run_are_rejected(finished_run: FinishedRun, tmp_path: Path) -> None:
    out = shutil.copytree(finished_run("text"), tmp_path / "run")
    before = read_files(out)
    message = r"only training\.max_steps, training\.max_epochs, .*, training\.cpu_offload and logging may change"
    for change in ({"warmup_steps": 3}, {"schedule": "constant"}, {"batch_size": 8}, {"ema": 0.5}):
        key = next(iter(change))
        with pytest.raises(UserError, match=rf"other settings \((task|training)\.{key}.*{message}"):
            train(TINY["text"](finished_run("text").parent, keep=7, **change), out, quiet=True)
    with pytest.raises(UserError, match="cannot change max_hours of a started run"):
        train_resolved(resolve_current(read_changed_recipe(out, max_steps=None, max_hours=1.0), out), quiet=True)
    assert read_files(out) == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", TINY)
def test_extended_run_killed_at_any_time_equals_uninterrupted(
    finished_run: FinishedRun, tmp_path: Path, case: str
) -> None:
    """Repetitions of the command neither extend the run twice nor change its result."""
    recipe = TINY[case](finished_run(case).parent, save_every=2)
    original_run = train(recipe, tmp_path / "begun", quiet=True)
    expected, out = (shutil.copytree(original_run, tmp_path / name) for name in ("expected", "run"))
    start_time = time.perf_counter()
    train(recipe, expected, Resume(More(28)), quiet=True)
    duration, rng, kills = time.perf_counter() - start_time, random.Random(case), 0
    while kills < 20:
        pid = child(lambda: train(recipe, out, Resume(More(28)), quiet=True))
        time.sleep(rng.uniform(0.0, 0.5) * duration)
        os.kill(pid, signal.SIGKILL)
        kills += exit_code(pid) != 0
        record = read_record(out)
        assert record is not None
        if record.finished and record.changes:  # it finished before it was killed, so it starts again
            shutil.rmtree(out)
            shutil.copytree(original_run, out)
        assert changes(out) in ([], [(12, "training.max_steps", 12, 40)])
        assert load_model(out / "last").card.step <= 40
    train(recipe, out, Resume(More(28)), quiet=True)
    assert_same_run(expected, out)

"""A run that is killed and resumed is bitwise identical to an uninterrupted run."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from tiny_runs import (
    CHECKPOINT,
    MUON,
    PAIRS_MUON,
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
from tercet.checkpoint.metrics import read_metrics
from tercet.storage import write_folder
from tercet.training import Recipe, train
from tercet.training.loop.step_actions import CheckpointWriter

CASES: dict[str, dict[str, Any]] = {
    "text": {},
    "pairs": {},
    "masked": {},
    "labels": {},
    "chat": {},
    "vectors": {},
    "text-muon": {"optimizer": MUON},
    "pairs-muon": {"optimizer": PAIRS_MUON},
}
EXHAUSTIVE = pytest.mark.exhaustive

FinishedRun = Callable[[str], Path]


def make_recipe(case: str, folder: Path) -> Recipe:
    return TINY[case.partition("-")[0]](folder, **CASES[case])


@pytest.fixture(scope="session")
def uninterrupted_run(finished_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Return a function that gives the uninterrupted run, next to its data."""
    folder = tmp_path_factory.mktemp("whole")

    def run(case: str) -> Path:
        if case in TINY:
            return finished_run(case)
        out = folder / case
        return out if out.exists() else train(make_recipe(case, folder), out, quiet=True)

    return run


def train_and_die(recipe: Recipe, out: Path, n: int, *, after: bool, name: str = "") -> int:
    """Train in a separate process, which may kill itself at its n-th rename, and return its exit code."""

    def work() -> None:
        dies_at_rename(n, after=after, name=name)()
        train(recipe, out, quiet=True)

    return exit_code(child(work))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "attempts"),
    [
        *((case, 3) for case in ("pairs", "text-muon")),
        *(pytest.param(case, 10, marks=EXHAUSTIVE) for case in CASES),
    ],
)
def test_killed_in_the_middle_of_saving(
    uninterrupted_run: FinishedRun, tmp_path: Path, case: str, attempts: int
) -> None:
    reference = uninterrupted_run(case)
    recipe = make_recipe(case, reference.parent)
    rng, n_kills, out = random.Random(7), 0, tmp_path / "run"
    for _ in range(attempts):
        code = train_and_die(recipe, out, rng.randint(1, 20), after=rng.random() < 0.5)
        assert code in (0, -signal.SIGKILL)
        n_kills += code != 0
        if (out / "best" / "model.safetensors").exists():
            load_model(out)  # any model that exists can be loaded
        if any((out / "checkpoints").glob(CHECKPOINT)):
            resume_state(out)
    assert n_kills >= 2
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "after"), [("text", False), pytest.param("pairs", True, marks=EXHAUSTIVE)])
def test_killed_while_writing_the_first_files(
    uninterrupted_run: FinishedRun, tmp_path: Path, case: str, after: bool
) -> None:
    reference = uninterrupted_run(case)
    recipe = make_recipe(case, reference.parent)
    out = tmp_path / "run"
    for n in (1, 2, 3):
        assert train_and_die(recipe, out, n, after=after) == -signal.SIGKILL
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "kills"), [("text", 3), *(pytest.param(case, 5, marks=EXHAUSTIVE) for case in CASES)])
def test_killed_at_any_time(uninterrupted_run: FinishedRun, tmp_path: Path, case: str, kills: int) -> None:
    reference = uninterrupted_run(case)
    recipe = make_recipe(case, reference.parent)
    start_time = time.perf_counter()
    train(recipe, tmp_path / "timed", quiet=True)
    duration, rng, out = time.perf_counter() - start_time, random.Random(3), tmp_path / "run"
    for _ in range(kills):
        pid = child(lambda: train(recipe, out, quiet=True))
        time.sleep(rng.uniform(0.2, 0.9) * duration)
        os.kill(pid, signal.SIGKILL)
        exit_code(pid)
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "number"),
    [
        ("text", signal.SIGTERM),
        ("pairs", signal.SIGINT),
        pytest.param("text", signal.SIGINT, marks=EXHAUSTIVE),
        pytest.param("pairs", signal.SIGTERM, marks=EXHAUSTIVE),
    ],
)
def test_stopped_by_signal(uninterrupted_run: FinishedRun, tmp_path: Path, case: str, number: signal.Signals) -> None:
    reference = uninterrupted_run(case)
    recipe = make_recipe(case, reference.parent)
    out = tmp_path / "run"
    pid = child(lambda: train(recipe, out, quiet=True))
    wait_for(out / "metrics.csv")
    os.kill(pid, number)
    assert exit_code(pid) == 128 + number
    step = resume_state(out)["global_step"]
    assert 0 < step < 12
    assert (out / "last" / "model.safetensors").exists()
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)
    seconds = [value for _, value in read_metrics(out / "metrics.csv")["seconds"]]
    assert seconds == sorted(seconds)  # the time before the stop counts


def forgets_the_average(state: dict[str, Any]) -> None:
    state["state_dict"]["average.module.embedding.weight"].zero_()


def forgets_its_age(state: dict[str, Any]) -> None:
    state["state_dict"]["average.n_averaged"].zero_()


def forgets_the_weights(state: dict[str, Any]) -> None:
    state["state_dict"]["model.embedding.weight"][0] += 1e-4


def forgets_the_moments(state: dict[str, Any]) -> None:
    for moments in state["optimizer_states"][0]["state"].values():
        moments["exp_avg"].zero_()


def remembers_another_best(state: dict[str, Any]) -> None:
    state["callbacks"]["StepActions"]["Validation"]["best"] = -99.0


@pytest.fixture(scope="module")
def killed_in_an_epoch(uninterrupted_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a translation run that was killed right after its first save: at step 4, 4 buckets into an epoch of 11."""
    out = tmp_path_factory.mktemp("killed") / "run"
    recipe = make_recipe("pairs", uninterrupted_run("pairs").parent)
    assert train_and_die(recipe, out, 1, after=True, name=CHECKPOINT) == -signal.SIGKILL
    assert resume_state(out)["global_step"] == 4
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        None,
        forgets_its_age,
        forgets_the_moments,
        *(
            pytest.param(fault, marks=EXHAUSTIVE)
            for fault in (forgets_the_average, forgets_the_weights, remembers_another_best)
        ),
    ],
)
def test_missing_state_is_detected_after_resume(
    uninterrupted_run: FinishedRun,
    killed_in_an_epoch: Path,
    tmp_path: Path,
    fault: Callable[[dict[str, Any]], None] | None,
) -> None:
    out = tmp_path / "run"
    shutil.copytree(killed_in_an_epoch, out)
    if fault is not None:
        state = resume_state(out)
        fault(state)
        with write_folder(newest_checkpoint(out), keep=lambda entry: entry.name == "metrics.csv") as new:
            torch.save(state, new / "state.ckpt")
    train(make_recipe("pairs", uninterrupted_run("pairs").parent), out, quiet=True)
    if fault is None:
        assert_same_run(uninterrupted_run("pairs"), out)
    else:
        with pytest.raises(AssertionError):
            assert_same_run(uninterrupted_run("pairs"), out)


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param("text", marks=EXHAUSTIVE), "pairs"])
def test_a_run_killed_out_of_patience_stops_at_once(tmp_path: Path, case: str) -> None:
    """At a rate of zero, neither loss nor BLEU improves, and the run saves and stops at step 6."""
    recipe = TINY[case](
        tmp_path, optimizer={"kind": "adam", "lr": 0.0}, patience=2, validate_every=2, save_every=30, max_steps=30
    )
    out = tmp_path / "run"
    assert train_and_die(recipe, out, 1, after=True, name=CHECKPOINT) == -signal.SIGKILL
    assert resume_state(out)["global_step"] == 6
    before = figures(out), weights(out), weights(out, "best")
    assert '"finished": false' in (out / "run.json").read_text()
    train(recipe, out, quiet=True)
    assert resume_state(out)["global_step"] == 6
    assert (figures(out), weights(out), weights(out, "best")) == before
    assert '"finished": true' in (out / "run.json").read_text()


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, max_steps=100_000, validate_every=100_000, save_every=100_000, log_every=1)
    out = tmp_path / "run"

    def stuck() -> None:
        CheckpointWriter.after_step = lambda *_: time.sleep(60)  # a step that never ends
        train(recipe, out, quiet=True)

    pid = child(stuck)
    wait_for(out / "metrics.csv")
    time.sleep(0.2)
    start_time = time.perf_counter()
    os.kill(pid, signal.SIGINT)
    time.sleep(0.2)
    os.kill(pid, signal.SIGINT)
    assert exit_code(pid) == 130
    assert time.perf_counter() - start_time < 30  # not the 60 s of the step


@pytest.mark.parametrize("case", ["text-muon", "pairs"])
def test_nothing_in_the_resume_file_needs_pickle(uninterrupted_run: FinishedRun, case: str) -> None:
    reference = uninterrupted_run(case)
    state = torch.load(newest_checkpoint(reference) / "state.ckpt", weights_only=True)
    assert state["global_step"] == 12
    assert {"state_dict", "optimizer_states", "callbacks"} <= state.keys()


def wait_for(path: Path) -> None:
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.005)
    raise AssertionError(f"{path} did not appear")


def test_settings_for_determinism_end_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, Lightning makes the process deterministic, which would be in force in the code after the run."""
    trainer, seen = pl.Trainer, list[bool]()

    def deterministic_trainer(**settings: Any) -> pl.Trainer:
        made = trainer(**{**settings, "deterministic": True})
        seen.append(torch.are_deterministic_algorithms_enabled())
        return made

    monkeypatch.setattr(pl, "Trainer", deterministic_trainer)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    train(tiny_recipe(tmp_path, max_steps=2), tmp_path / "run", quiet=True)
    assert seen == [True]
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ

"""A run that was killed and run again is the run that was never killed, to the last bit."""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import ADAMW, MUON, assert_same_run, child, dies_at_rename, exit_code, resume_state, tiny_recipe

from tercet.checkpoint import load_model
from tercet.training import Recipe, train
from tercet.training.after_step import Checkpoints


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


def uninterrupted(whole: dict[str, Path], tmp_path: Path, name: str, recipe: Recipe) -> Path:
    """The run to compare with, once for all tests of this file."""
    if name not in whole:
        whole[name] = train(recipe, tmp_path.parent / f"whole-{name}", quiet=True)
    return whole[name]


def recipe_of(tmp_path: Path, optimizer: dict[str, Any]) -> Recipe:
    return tiny_recipe(tmp_path.parent, optimizer=optimizer)


@pytest.mark.parametrize(
    "optimizer", [ADAMW, pytest.param(MUON, marks=pytest.mark.slow)], ids=lambda spec: spec["kind"]
)
def test_killed_in_the_middle_of_saving(whole: dict[str, Path], tmp_path: Path, optimizer: dict[str, Any]) -> None:
    recipe = recipe_of(tmp_path, optimizer)
    reference = uninterrupted(whole, tmp_path, optimizer["kind"], recipe)
    chance, deaths, out = random.Random(7), 0, tmp_path / "run"

    def dying(n: int, after: bool) -> None:
        dies_at_rename(n, after=after)()
        train(recipe, out, quiet=True)

    for _ in range(8):
        code = exit_code(child(partial(dying, chance.randint(1, 20), chance.random() < 0.5)))
        assert code in (0, -signal.SIGKILL)
        deaths += code != 0
        if (out / "best" / "model.safetensors").exists():
            load_model(out)  # whatever there is can be used
        if (out / "resume.ckpt").exists():
            resume_state(out)
    assert deaths >= 3
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_its_very_first_files(whole: dict[str, Path], tmp_path: Path, after: bool) -> None:
    recipe = recipe_of(tmp_path, ADAMW)
    reference = uninterrupted(whole, tmp_path, "adamw", recipe)
    out = tmp_path / "run"

    def dying(n: int) -> None:
        dies_at_rename(n, after=after)()
        train(recipe, out, quiet=True)

    for n in (1, 2, 3):
        assert exit_code(child(partial(dying, n))) == -signal.SIGKILL
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)


@pytest.mark.slow
def test_killed_at_any_time(whole: dict[str, Path], tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, MUON)
    reference = uninterrupted(whole, tmp_path, "muon", recipe)
    started = time.perf_counter()
    train(recipe, tmp_path / "timed", quiet=True)
    takes, chance, out = time.perf_counter() - started, random.Random(3), tmp_path / "run"
    for _ in range(5):
        pid = child(lambda: train(recipe, out, quiet=True))
        time.sleep(chance.uniform(0.2, 0.9) * takes)
        os.kill(pid, signal.SIGKILL)
        exit_code(pid)
    train(recipe, out, quiet=True)
    assert_same_run(reference, out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_politely(whole: dict[str, Path], tmp_path: Path, number: signal.Signals) -> None:
    recipe = recipe_of(tmp_path, ADAMW)
    reference = uninterrupted(whole, tmp_path, "adamw", recipe)
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


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, max_steps=100_000, validate_every=100_000, save_every=100_000, log_every=1)
    out = tmp_path / "run"

    def stuck() -> None:
        Checkpoints.after_step = lambda *_: time.sleep(60)  # the step that never ends
        train(recipe, out, quiet=True)

    pid = child(stuck)
    wait_for(out / "metrics.csv")
    time.sleep(0.2)
    started = time.perf_counter()
    os.kill(pid, signal.SIGINT)
    time.sleep(0.2)
    os.kill(pid, signal.SIGINT)
    assert exit_code(pid) == 130
    assert time.perf_counter() - started < 30  # not the 60 that the step would take


def test_nothing_in_the_resume_file_needs_pickle(whole: dict[str, Path], tmp_path: Path) -> None:
    reference = uninterrupted(whole, tmp_path, "muon", recipe_of(tmp_path, MUON))
    state = torch.load(reference / "resume.ckpt", weights_only=True)
    assert state["global_step"] == 12
    assert {"state_dict", "optimizer_states", "callbacks"} <= state.keys()


def wait_for(path: Path) -> None:
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.005)
    raise AssertionError(f"{path} did not appear")

"""A run that is killed at any file change and resumed ends as the uninterrupted run.

Readers always find complete models. If two processes train in one folder, one of them is rejected.
"""

import json
import os
import pickle
import random
import select
import time
from contextlib import suppress
from pathlib import Path

import pytest
from attack import Outcome
from damage_runs import (
    FACTOR,
    FAMILIES,
    TRAIN,
    PreparedRuns,
    call_at_step,
    final_state,
    list_files,
    prepare,
    read_answer,
)
from faults import Change, die, watch
from report import KILL_CODE

KILLS = 2 if FACTOR == 1 else 3  # per family; multiplied by TERCET_HOSTILE
PAIRS = 1  # pairs of processes in one folder; multiplied by TERCET_HOSTILE

TESTED_FAMILIES = FAMILIES if FACTOR > 1 else FAMILIES[:1]


@pytest.fixture(params=TESTED_FAMILIES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PreparedRuns:
    return prepare(request.param, tmp_path_factory.getbasetemp() / "hostile" / request.param)


def lay_out(runs: PreparedRuns, place: Path) -> None:
    """Create a working folder without a run, and with an empty cache."""
    runs.lay_out(place, None)
    (place / "cache").mkdir()


def measure_a_run(runs: PreparedRuns, place: Path) -> tuple[int, set[str]]:
    """Return the number of file changes of a whole run, and its files."""
    lay_out(runs, place)
    log = place.parent / "changes"

    def before() -> None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        watch([place], lambda change: os.write(file, b"."))

    assert runs.call(place, "train", before=before).code == 0
    return log.stat().st_size, set(list_files(place))


@pytest.mark.slow
def test_a_run_killed_at_any_file_change_resumes_exactly(runs: PreparedRuns, tmp_path: Path) -> None:
    expected, place = runs.answer("finished", "train"), tmp_path / "place"
    changes, files = measure_a_run(runs, place)
    chance, kills = random.Random(f"{runs.family} {os.environ.get('TERCET_HOSTILE_SEED', '0')}"), 0
    failures: list[str] = []
    while kills < KILLS * FACTOR:
        lay_out(runs, place)
        kill_points: list[str] = []
        for _ in range(5):
            if chance.random() < 0.5:
                number = chance.randint(1, changes)
                kill_points.append(f"change {number}")
                outcome = runs.call(place, "train", before=lambda n=number: watch([place], die(after=n)))
            else:
                seconds = chance.uniform(0.05, 0.8)
                kill_points.append(f"{seconds:.2f} s")
                outcome = runs.call(place, "train", seconds=seconds)
            if outcome.code == KILL_CODE:
                kills += 1
                if fault := find_damaged_model(runs, place):
                    failures.append(f"killed at {kill_points}: {fault}")
            else:
                kill_points.pop()
                break
        outcome = runs.call(place, "train")
        if outcome.code or read_answer(place, "train", outcome) != expected:
            failures.append(f"killed at {kill_points}: {differences(runs, place, outcome)}")
        elif stray := set(list_files(place)) - files:
            failures.append(f"killed at {kill_points}: left {sorted(stray)}")
    assert not failures, f"{len(failures)} of {kills} kills:\n" + "\n".join(failures)


def find_damaged_model(runs: PreparedRuns, place: Path) -> str:
    """Return a description of a damaged model in a killed run, or an empty string."""
    run = place / "run"
    for folder in ("best", "last"):
        if (run / folder).exists() or was_saved(run, folder):
            outcome = runs.call(place, "inspect", [f"run/{folder}"])
            if outcome.code and not (outcome.refused_in_one_line() and not was_saved(run, folder)):
                return f"{folder} cannot be opened: {outcome.stderr.strip()[-200:]}"
    return ""


def was_saved(run: Path, folder: str) -> bool:
    """Return True if the first save of the folder was completed."""
    return (run / folder / "model.safetensors").exists()


def differences(runs: PreparedRuns, place: Path, outcome: Outcome) -> str:
    if outcome.code:
        return f"exit code {outcome.code}: {outcome.stderr.strip()[-200:]}"
    expected_state, state = final_state(runs.folder / "finished" / "run"), final_state(place / "run")
    return (
        ", ".join(name for name in expected_state if expected_state[name] != state.get(name)) + " differ"
        or "stdout differs"
    )


@pytest.mark.exhaustive
def test_a_reader_always_finds_complete_models(runs: PreparedRuns, tmp_path: Path) -> None:
    """At each change of a file, a child opens both models: step and weights must belong together."""
    place, log = runs.lay_out(tmp_path / "place", None), tmp_path / "read"

    def before() -> None:
        from tercet.checkpoint import load_model

        def read(change: Change) -> None:
            if change.operation in ("open", "fsync"):
                return  # no name changes
            if not any(name in change.path for name in ("best", "last")):
                return  # not a file of a model
            if child := os.fork():
                os.waitpid(child, 0)
                return
            lines: list[str] = []
            for folder in ("best", "last"):
                try:
                    trained_model = load_model(place / "run" / folder)
                    state = trained_model.model.state_dict().items()
                    weights = hash(tuple(float(tensor.double().sum()) for _, tensor in state))
                    lines.append(json.dumps([folder, trained_model.card.step, weights, ""]))
                except Exception as error:
                    lines.append(json.dumps([folder, 0, 0, f"{change.operation} {change.place}: {error}"[-300:]]))
            with log.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))
            os._exit(0)

        watch([place / "run"], read)

    outcome = runs.call(place, "train", [*TRAIN, "--set", "training.max_steps=6"], before=before, seconds=120)
    assert outcome.code == 0, outcome
    readings = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(readings) > 20
    steps_read: dict[str, set[int]] = {"best": set(), "last": set()}
    weights_by_step: dict[int, set[int]] = {}
    steps_by_weights: dict[int, set[int]] = {}
    unreadable = set[str]()
    for folder, step, weights, error in readings:
        if error:
            if steps_read[folder]:  # a model may be missing until its first save has ended
                unreadable.add(f"{folder}: {error}")
        else:
            steps_read[folder].add(step)
            weights_by_step.setdefault(step, set()).add(weights)
            steps_by_weights.setdefault(weights, set()).add(step)
    assert not unreadable, "\n".join(sorted(unreadable))
    inconsistent = {step: len(hashes) for step, hashes in weights_by_step.items() if len(hashes) > 1}
    assert not inconsistent, f"steps with several weights: {inconsistent}"
    inconsistent = {min(steps): steps for steps in steps_by_weights.values() if len(steps) > 1}
    assert not inconsistent, f"weights with several steps: {inconsistent}"


@pytest.mark.slow
def test_a_second_process_on_a_run_folder_is_rejected(runs: PreparedRuns, tmp_path: Path) -> None:
    expected, place, ended_file = runs.answer("finished", "train"), tmp_path / "place", tmp_path / "ended"
    failures: list[str] = []
    for _ in range(PAIRS * FACTOR):
        lay_out(runs, place)
        ended_file.unlink(missing_ok=True)
        outcomes = train_twice(runs, place, ended_file)
        codes = sorted(outcome.code for outcome in outcomes)
        rejections = [outcome for outcome in outcomes if outcome.code == 2]
        winner = next((outcome for outcome in outcomes if outcome.code == 0), None)
        if codes != [0, 2] or not rejections[0].refused_in_one_line() or "run" not in rejections[0].stderr:
            failures.append(f"exit codes {codes}: {[outcome.stderr.strip()[-120:] for outcome in outcomes]}")
        if winner is None or read_answer(place, "train", winner) != expected:
            failures.append("lost: " + differences(runs, place, runs.call(place, "train")))
    assert not failures, "\n".join(failures)


def train_twice(runs: PreparedRuns, place: Path, ended_file: Path) -> list[Outcome]:
    """Run the same command in two processes at once. The one that trains waits until the other has ended."""

    def wait() -> None:
        for _ in range(500):
            if ended_file.exists():
                return
            time.sleep(0.01)

    children: dict[int, int] = {}
    for _ in range(2):
        read, write = os.pipe()
        if not (child := os.fork()):
            with suppress(BaseException):
                os.write(write, pickle.dumps(runs.call(place, "train", before=lambda: call_at_step(2, wait))))
            os._exit(0)
        os.close(write)
        children[read] = child
    outcomes: list[Outcome] = []
    while children:
        for read in select.select(list(children), [], [])[0]:
            with os.fdopen(read, "rb") as file:
                outcomes.append(pickle.loads(file.read()))
            os.waitpid(children.pop(read), 0)
            ended_file.touch()
    return outcomes

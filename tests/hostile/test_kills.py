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
from damage_runs import FACTOR, FAMILIES, TRAIN, Prepared, at_step, files_of, final_state, prepare, read_answer
from faults import Change, die, watch
from report import KILLED

KILLS = 3  # per family; multiplied by TERCET_HOSTILE
PAIRS = 1  # pairs of processes in one folder; multiplied by TERCET_HOSTILE

CHOSEN = FAMILIES if FACTOR > 1 else FAMILIES[:1]


@pytest.fixture(params=CHOSEN)
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(request.param, tmp_path_factory.getbasetemp() / "hostile" / request.param)


def lay_out(own: Prepared, place: Path) -> None:
    """Create a working folder without a run, and with an empty cache."""
    own.lay_out(place, None)
    (place / "cache").mkdir()


def measure_a_run(own: Prepared, place: Path) -> tuple[int, set[str]]:
    """Return the number of file changes of a whole run, and its files."""
    lay_out(own, place)
    log = place.parent / "changes"

    def before() -> None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        watch([place], lambda change: os.write(file, b"."))

    assert own.call(place, "train", before=before).code == 0
    return log.stat().st_size, set(files_of(place))


@pytest.mark.slow
def test_a_run_killed_at_any_file_change_resumes_exactly(own: Prepared, tmp_path: Path) -> None:
    expected, place = own.answer("finished", "train"), tmp_path / "place"
    changes, files = measure_a_run(own, place)
    chance, kills = random.Random(f"{own.family} {os.environ.get('TERCET_HOSTILE_SEED', '0')}"), 0
    wrong: list[str] = []
    while kills < KILLS * FACTOR:
        lay_out(own, place)
        died_at: list[str] = []
        for _ in range(5):
            if chance.random() < 0.5:
                number = chance.randint(1, changes)
                died_at.append(f"change {number}")
                outcome = own.call(place, "train", before=lambda n=number: watch([place], die(after=n)))
            else:
                seconds = chance.uniform(0.05, 0.8)
                died_at.append(f"{seconds:.2f} s")
                outcome = own.call(place, "train", seconds=seconds)
            if outcome.code == KILLED:
                kills += 1
                if fault := whole_models(own, place):
                    wrong.append(f"killed at {died_at}: {fault}")
            else:
                died_at.pop()
                break
        outcome = own.call(place, "train")
        if outcome.code or read_answer(place, "train", outcome) != expected:
            wrong.append(f"killed at {died_at}: {differences(own, place, outcome)}")
        elif stray := set(files_of(place)) - files:
            wrong.append(f"killed at {died_at}: left {sorted(stray)}")
    assert not wrong, f"{len(wrong)} of {kills} kills:\n" + "\n".join(wrong)


def whole_models(own: Prepared, place: Path) -> str:
    """Return a description of a damaged model in a killed run, or an empty string."""
    run = place / "run"
    for folder in ("best", "last"):
        if (run / folder).exists() or ever_whole(run, folder):
            outcome = own.call(place, "inspect", [f"run/{folder}"])
            if outcome.code and not (outcome.refused_in_one_line() and not ever_whole(run, folder)):
                return f"{folder} cannot be opened: {outcome.stderr.strip()[-200:]}"
    return ""


def ever_whole(run: Path, folder: str) -> bool:
    """Return True if the first save of the folder was completed."""
    return (run / folder / "model.safetensors").exists()


def differences(own: Prepared, place: Path, outcome: Outcome) -> str:
    if outcome.code:
        return f"exit code {outcome.code}: {outcome.stderr.strip()[-200:]}"
    whole, here = final_state(own.folder / "finished" / "run"), final_state(place / "run")
    return ", ".join(name for name in whole if whole[name] != here.get(name)) + " differ" or "stdout differs"


@pytest.mark.slow
def test_a_reader_always_finds_complete_models(own: Prepared, tmp_path: Path) -> None:
    """At each change of a file, a child opens both models: step and weights must belong together."""
    place, log = own.lay_out(tmp_path / "place", None), tmp_path / "read"

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

    outcome = own.call(place, "train", [*TRAIN, "--set", "training.max_steps=6"], before=before, seconds=120)
    assert outcome.code == 0, outcome
    readings = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(readings) > 20
    seen: dict[str, set[int]] = {"best": set(), "last": set()}
    weights_at: dict[int, set[int]] = {}
    steps_of: dict[int, set[int]] = {}
    broken = set[str]()
    for folder, step, weights, error in readings:
        if error:
            if seen[folder]:  # a model may be missing until its first save has ended
                broken.add(f"{folder}: {error}")
        else:
            seen[folder].add(step)
            weights_at.setdefault(step, set()).add(weights)
            steps_of.setdefault(weights, set()).add(step)
    assert not broken, "\n".join(sorted(broken))
    mixed = {step: len(found) for step, found in weights_at.items() if len(found) > 1}
    assert not mixed, f"steps with several weights: {mixed}"
    mixed = {min(steps): steps for steps in steps_of.values() if len(steps) > 1}
    assert not mixed, f"weights with several steps: {mixed}"


@pytest.mark.slow
def test_a_second_process_on_a_run_folder_is_rejected(own: Prepared, tmp_path: Path) -> None:
    expected, place, ended = own.answer("finished", "train"), tmp_path / "place", tmp_path / "ended"
    wrong: list[str] = []
    for _ in range(PAIRS * FACTOR):
        lay_out(own, place)
        ended.unlink(missing_ok=True)
        both = train_twice(own, place, ended)
        codes = sorted(outcome.code for outcome in both)
        refused = [outcome for outcome in both if outcome.code == 2]
        won = next((outcome for outcome in both if outcome.code == 0), None)
        if codes != [0, 2] or not refused[0].refused_in_one_line() or "run" not in refused[0].stderr:
            wrong.append(f"exit codes {codes}: {[outcome.stderr.strip()[-120:] for outcome in both]}")
        if won is None or read_answer(place, "train", won) != expected:
            wrong.append("lost: " + differences(own, place, own.call(place, "train")))
    assert not wrong, "\n".join(wrong)


def train_twice(own: Prepared, place: Path, ended: Path) -> list[Outcome]:
    """Run the same command in two processes at once. The one that trains waits until the other has ended."""

    def wait() -> None:
        for _ in range(500):
            if ended.exists():
                return
            time.sleep(0.01)

    children: dict[int, int] = {}
    for _ in range(2):
        read, write = os.pipe()
        if not (child := os.fork()):
            with suppress(BaseException):
                os.write(write, pickle.dumps(own.call(place, "train", before=lambda: at_step(2, wait))))
            os._exit(0)
        os.close(write)
        children[read] = child
    both: list[Outcome] = []
    while children:
        for read in select.select(list(children), [], [])[0]:
            with os.fdopen(read, "rb") as file:
                both.append(pickle.loads(file.read()))
            os.waitpid(children.pop(read), 0)
            ended.touch()
    return both

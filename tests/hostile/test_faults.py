"""A disk error at any place that writes leads to one line, and the same command then succeeds when repeated.

The list of places is generated: whole commands run, and each change of a file is recorded with its line of code.
"""

import errno
import hashlib
import os
import random
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from attack import Outcome
from damage_runs import FACTOR, PreparedRuns, final_state, list_files, prepare
from faults import FAULTS, Change, Fault, fail, reject_write, run_with_piped_output, set_clock_back, watch
from report import note

QUICK = 2 if FACTOR == 1 else 3  # places and errors per action; multiplied by TERCET_HOSTILE
FULL = FACTOR > 1


@dataclass(frozen=True)
class Action:
    """A command that writes files.

    Attributes:
        state: State of the run before the command, or None.
        output: Path that it writes outside of the run; None for training.
        kernels: If True, use the kernel cache with a fake compiler whose output is unusable.
    """

    family: str
    arguments: tuple[str, ...]
    state: str | None = "finished"
    output: str | None = None
    kernels: bool = False


TRAIN = ("train", "recipe.yaml", "--out", "run", "--quiet")
ACTIONS = {
    "train": Action("text", TRAIN, None),
    "train on": Action("text", TRAIN, "stopped"),
    "train with kernels": Action("text", TRAIN, None, kernels=True),
    "train a translator": Action("pairs", TRAIN, None),
    "train an encoder": Action("masked", TRAIN, None),
    "convert": Action("text", ("convert", "run", "out/model"), output="out"),
    "convert --to hf": Action("text", ("convert", "run", "out/model", "--to", "hf"), output="out"),
    "convert --to gguf": Action("text", ("convert", "run", "out/model", "--to", "gguf"), output="out"),
    "convert --to onnx": Action("text", ("convert", "run", "out/model", "--to", "onnx"), output="out"),
    "convert --to ctranslate2": Action("pairs", ("convert", "run", "out/model", "--to", "ctranslate2"), output="out"),
    "plot": Action("text", ("plot", "run", "loss"), output="run/plots"),
    "plot positions": Action(
        "text", ("plot", "positions", "sinusoidal", "--out", "positions.png"), output="positions.png"
    ),
    "explore --export": Action(
        "text", ("explore", "run", "--prompt", "3 times", "--export", "page.html"), output="page.html"
    ),
    "compare": Action("text", ("compare", "run", "other", "--out", "out", "--quiet"), output="out"),
    "evaluate": Action("text", ("evaluate", "run")),
    "evaluate --output": Action("pairs", ("evaluate", "run", "--output", "out.txt"), output="out.txt"),
    "embed": Action("masked", ("embed", "run", "--input", "in.txt", "--output", "out.npz"), output="out.npz"),
    "translate --attention": Action(
        "pairs",
        ("translate", "run", "--input", "in.txt", "--attention", "out.svg", "--quiet"),
        output="out.svg",
    ),
}
QUICK_ACTIONS = ("train on", "convert")


@dataclass(frozen=True)
class Scene:
    """An action with its data that can be repeated from the start."""

    action: Action
    runs: PreparedRuns
    place: Path

    def lay_out(self) -> None:
        self.runs.lay_out(self.place, self.action.state)
        (self.place / "cache").mkdir()
        compiler = self.place / "compiler"
        compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho > "$2"\n')
        compiler.chmod(stat.S_IRWXU)

    def call(self, before: Callable[[], None] = lambda: None, *, full: bool = False) -> Outcome:
        def prepare_child() -> None:
            if self.action.kernels:
                os.environ.update(TERCET_KERNEL="auto", CXX=str(self.place / "compiler"))
            before()

        verb, *arguments = self.action.arguments
        options = {"wrap_command": run_with_piped_output} if full else {}
        return self.runs.call(self.place, verb, arguments, before=prepare_child, seconds=60, **options)

    def result(self) -> dict[str, str]:
        """Return hashes of the files that the action writes, by name."""
        if self.action.output is None:
            return final_state(self.place / "run") if self.action.arguments == TRAIN else {}
        path = self.place / self.action.output
        files = {path.name: path} if path.is_file() else {name: path / name for name in list_files(path)}
        return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}

    def files(self) -> set[str]:
        """Return names of all files. Kernel names depend on the time of the compiler, which is new each time."""
        return {re.sub(r"kernels/[0-9a-f]{24}\.", "kernels/*.", name) for name in list_files(self.place)}


@dataclass(frozen=True)
class Clean:
    """An undisturbed action: its changes and its result."""

    scene: Scene
    changes: tuple[Change, ...]
    result: dict[str, str]
    files: set[str]


_CLEAN: dict[tuple[str, Path], Clean] = {}


@pytest.fixture
def clean(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Clean]:
    base = tmp_path_factory.getbasetemp() / "hostile"

    def run_clean(name: str) -> Clean:
        if (name, base) not in _CLEAN:
            action = ACTIONS[name]
            scene = Scene(
                action, prepare(action.family, base / action.family), base / "faults" / name.replace(" ", "-")
            )
            scene.lay_out()
            log = base / "changes"
            log.unlink(missing_ok=True)

            def before() -> None:
                file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

                def write(change: Change) -> None:
                    os.write(file, "\t".join((change.operation, change.path, change.place)).encode() + b"\n")

                watch([scene.place], write)

            outcome = scene.call(before)
            if outcome.code == 2 and "pip install" in outcome.stderr:
                pytest.skip(outcome.stderr)
            assert outcome.code == 0, outcome
            changes = tuple(Change(*line.split("\t")) for line in log.read_text().splitlines())
            _CLEAN[name, base] = Clean(scene, changes, scene.result(), scene.files())
        return _CLEAN[name, base]

    return run_clean


def places(clean: Clean) -> list[Change]:
    """Return the first change of each place and operation."""
    return list({(change.operation, change.place): change for change in reversed(clean.changes)}.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIONS if FULL else QUICK_ACTIONS)
def test_every_place_that_writes_is_recorded(clean: Callable[[str], Clean], name: str) -> None:
    found = places(clean(name))
    for change in found:
        path = change.path.removeprefix(str(clean(name).scene.place) + "/")
        note(action=name, operation=change.operation, place=change.place, file=path)
    assert found
    assert not [change for change in found if change.place == "outside of the package"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIONS if FULL else QUICK_ACTIONS)
def test_disk_errors_are_reported_and_leave_no_damage(clean: Callable[[str], Clean], name: str) -> None:
    clean_action = clean(name)
    cases = [
        (change, fault)
        for change in places(clean_action)
        for fault in FAULTS
        if change.operation in fault.operations
        # The working folder itself does not disappear.
        and not (fault.error == errno.ENOENT and Path(change.path).parent == clean_action.scene.place)
    ]
    chance = random.Random(f"{name} {os.environ.get('TERCET_HOSTILE_SEED', '0')}")
    sample = chance.sample(cases, min(len(cases), QUICK * FACTOR))
    failures: list[str] = []
    for change, fault in sample:
        clean_action.scene.lay_out()
        outcome = clean_action.scene.call(
            lambda c=change, f=fault: watch([clean_action.scene.place], fail(f, c)), full=fault.error == errno.EFBIG
        )
        description = judge(clean_action, change, fault, outcome)
        note(fault=fault.name, operation=change.operation, place=change.place, ended=outcome.code, said=description)
        if description:
            failures.append(f"{fault.name} at {change.operation} of {change.place}: {description}")
    assert not failures, f"{len(failures)} of {len(sample)} faults:\n" + "\n".join(failures)


def accepted_names(place: Path, path: str) -> list[str]:
    """Return acceptable names in an error: the file, or a folder that contains it, by their final names."""
    parts = Path(path).relative_to(place.resolve()).parts
    names = [re.sub(r"^\.(.+)\.\w+-\d+-\d+\.new$", r"\1", part) for part in parts]
    return ["/".join(names[: end + 1]) for end in range(len(names))]


def judge(clean_action: Clean, change: Change, fault: Fault, outcome: Outcome) -> str:
    """Return a description of how a failing disk was handled badly, or an empty string."""
    line = (outcome.stderr.strip().splitlines() or [""])[-1][-200:]
    if outcome.code not in (0, 2) or outcome.has_traceback():
        return f"exit code {outcome.code}: {line}"
    if outcome.code == 2:
        if not outcome.refused_in_one_line():
            return f"not one line: {outcome.stderr[-300:]}"
        # If the fault persists, a later error may be reported instead of the first.
        if not fault.stays and not any(name in line for name in accepted_names(clean_action.scene.place, change.path)):
            return f"the line does not name the place: {line}"
        second = clean_action.scene.call()
        if second.code == 2 and fault.error == errno.ENOENT:
            return ""  # the file is still missing
        if second.code:
            return f"the same command again: exit code {second.code}: {second.stderr.strip()[-200:]}"
    try:
        result = clean_action.scene.result()
    except OSError as error:
        return f"no message, and missing {error.filename}" if outcome.code == 0 else f"incomplete: {error}"
    if names := [name for name in clean_action.result if result.get(name) != clean_action.result[name]]:
        return f"{', '.join(names)} differ (exit code {outcome.code})"
    stray = clean_action.scene.files() - clean_action.files
    if outcome.code == 0 and change.operation in ("remove", "rmdir"):  # files that the disk fails to remove are hidden
        stray = {name for name in stray if "/." not in f"/{name}"}
    return f"left {sorted(stray)}" if stray else ""


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["generate", "evaluate", "inspect"])
def test_read_only_folders_and_caches_work(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, verb: str) -> None:
    runs = prepare("text", tmp_path_factory.getbasetemp() / "hostile" / "text")
    expected, place = runs.answer("finished", verb), runs.lay_out(tmp_path / "place")
    outcome = runs.call(place, verb, before=lambda: watch([place, runs.cache], reject_write))
    assert outcome.code == 0, outcome
    assert expected is not None
    assert outcome.stdout == expected.stdout


@pytest.mark.slow
def test_a_clock_that_runs_backwards_is_harmless(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    runs = prepare("text", tmp_path_factory.getbasetemp() / "hostile" / "text")
    expected, place = runs.answer("finished", "train"), runs.lay_out(tmp_path / "place", "stopped")
    outcome = runs.call(place, "train", before=set_clock_back)
    assert outcome.code == 0, outcome
    assert expected is not None
    assert final_state(place / "run") == expected.files

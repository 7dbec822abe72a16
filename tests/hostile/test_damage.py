"""A damaged file is reported in one line, rebuilt or harmless: no traceback and no different result."""

import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from attack import Outcome
from damage import KINDS, damage, find_replacements
from damage_runs import FACTOR, FAMILIES, STATES, Answer, PreparedRuns, list_files, prepare, read_answer
from report import note

PREPARE = Callable[[str], PreparedRuns]
QUICK = 1  # damages per family and state; multiplied by TERCET_HOSTILE
SLICE = [("text", "finished")]  # a family that other tests prepare as well
CACHE_VERBS = ("train", "evaluate", "explore")  # commands that read cached texts and tokenizers
FAILING_VERDICTS = ("traceback", "hang", "unnamed", "WRONG")
LETTERS = {
    "noticed": "n",
    "recovered": "r",
    "harmless": ".",
    "unnamed": "U",
    "traceback": "T",
    "hang": "H",
    "WRONG": "W",
}


@dataclass(frozen=True)
class Damage:
    family: str
    state: str  # state of the run, or "cache"
    file: str
    kind: str

    def __str__(self) -> str:
        return f"{self.family}, {self.state}: {self.file}: {self.kind}"

    @property
    def label(self) -> str:
        """Name of the file without parts that differ between runs."""
        name = re.sub(r"[0-9a-f]{32}", "*", self.file)
        return re.sub(r"step-\d+", "step-*", name)


@pytest.fixture
def prepare_family(tmp_path_factory: pytest.TempPathFactory) -> PREPARE:
    return lambda family: prepare(family, tmp_path_factory.getbasetemp() / "hostile" / family)


def all_damages(runs: PreparedRuns, state: str) -> list[Damage]:
    folder = runs.cache if state == "cache" else runs.folder / state / "run"
    return [Damage(runs.family, state, file, kind) for file in list_files(folder) for kind in KINDS]


def attack_verbs(runs: PreparedRuns, target: Damage, place: Path, seed: int) -> Iterator[tuple[str, str, Outcome]]:
    """Yield each verb that may read the file, the verdict, and the outcome."""
    is_cache = target.state == "cache"
    state = "stopped" if is_cache else target.state
    other_moment = "stopped" if state == "finished" else "finished"
    for verb in CACHE_VERBS if is_cache else runs.verbs:
        if (expected := runs.answer(state, verb)) is None:
            continue
        runs.lay_out(place, state, own_cache=is_cache)
        path = place / ("cache" if is_cache else "run") / target.file
        replacements = find_replacements(
            target.file,
            run=place / ("cache" if is_cache else "run"),
            other_run=runs.folder / "other" / "run",
            other_moment=runs.folder / other_moment / "run",
        )
        if not damage(path, target.kind, random.Random(seed), replacements):
            return
        outcome = runs.call(place, verb, seconds=20)
        yield verb, judge(target, place, verb, outcome, expected), outcome


def judge(target: Damage, place: Path, verb: str, outcome: Outcome, expected: Answer) -> str:
    """Return the verdict on an outcome."""
    if outcome.code >= 128:
        return "hang"
    name = Path(target.file).name  # the file, or the folder that it makes unusable
    folder = "cache" if target.state == "cache" else f"run/{target.file.rpartition('/')[0]}"
    if outcome.refused_in_one_line():
        return "noticed" if name in outcome.stderr or (folder != "run/" and folder in outcome.stderr) else "unnamed"
    if outcome.has_traceback() or outcome.code:
        return "traceback"
    try:
        is_equal = read_answer(place, verb, outcome) == expected
    except (OSError, ValueError, LookupError, TypeError):  # the result is not even a readable run
        is_equal = False
    if not is_equal:
        return "WRONG"
    return "recovered" if name in outcome.stderr else "harmless"


@pytest.mark.slow
@pytest.mark.parametrize(("family", "state"), list(product(FAMILIES, (*STATES, "cache"))) if FACTOR > 1 else SLICE)
def test_damaged_files_are_reported_recovered_or_harmless(
    prepare_family: PREPARE, tmp_path: Path, family: str, state: str
) -> None:
    runs = prepare_family(family)
    chance = random.Random(f"{family} {state} {os.environ.get('TERCET_HOSTILE_SEED', '0')}")
    damages = all_damages(runs, state)
    sample = chance.sample(damages, min(len(damages), QUICK * FACTOR))
    failures: list[str] = []
    for number, target in enumerate(sample):
        for verb, verdict, outcome in attack_verbs(runs, target, tmp_path / "place", number):
            last_line = last_words(outcome)
            note(file=target.label, kind=target.kind, verb=verb, verdict=LETTERS[verdict], said=last_line)
            if verdict in FAILING_VERDICTS:
                failures.append(f"{target}: {verb}: {verdict}: {last_line}")
    assert not failures, f"{len(failures)} bad endings:\n" + "\n".join(failures)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["compared/settings.json", "run/run.json"])
def test_damaged_settings_of_a_comparison_are_reported(prepare_family: PREPARE, tmp_path: Path, file: str) -> None:
    runs, place = prepare_family("text"), tmp_path / "place"
    for kind in ("cut in half", "a folder", "page of zeros"):
        runs.lay_out(place)
        (place / "compared").mkdir()
        (place / "compared" / "settings.json").write_text('{"asked": {}, "arithmetic": {}}')
        assert damage(place / file, kind, random.Random(0), {})
        outcome = runs.call(place, "compare")
        assert outcome.refused_in_one_line(), outcome
        assert file in outcome.stderr


def last_words(outcome: Outcome) -> str:
    """Return the last line on stderr, with the place in the package for a traceback."""
    frames = re.findall(r'tercet/([\w/]+\.py)", line (\d+)', outcome.stderr)
    place = f" at {':'.join(frames[-1])}" if outcome.has_traceback() and frames else ""
    return (outcome.stderr.strip().splitlines() or ["nothing on stderr"])[-1][-200:] + place

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
from damage import KINDS, damage, others_of
from damage_runs import FACTOR, FAMILIES, STATES, Answer, Prepared, files_of, prepare, read_answer
from report import note

PREPARE = Callable[[str], Prepared]
QUICK = 1  # damages per family and state; multiplied by TERCET_HOSTILE
SLICE = [("text", "stopped"), ("text", "finished"), ("text", "cache")]  # a family that other tests prepare as well
OF_CACHE = ("train", "evaluate", "explore")  # commands that read cached texts and tokenizers
BAD = ("traceback", "hang", "unnamed", "WRONG")
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
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PREPARE:
    return lambda family: prepare(family, tmp_path_factory.getbasetemp() / "hostile" / family)


def all_damages(prepared: Prepared, state: str) -> list[Damage]:
    folder = prepared.cache if state == "cache" else prepared.folder / state / "run"
    return [Damage(prepared.family, state, file, kind) for file in files_of(folder) for kind in KINDS]


def attack_with(prepared: Prepared, damaged: Damage, place: Path, seed: int) -> Iterator[tuple[str, str, Outcome]]:
    """Yield each verb that may read the file, the verdict, and the outcome."""
    of_cache = damaged.state == "cache"
    state = "stopped" if of_cache else damaged.state
    other_moment = "stopped" if state == "finished" else "finished"
    for verb in OF_CACHE if of_cache else prepared.verbs:
        if (expected := prepared.answer(state, verb)) is None:
            continue
        prepared.lay_out(place, state, own_cache=of_cache)
        path = place / ("cache" if of_cache else "run") / damaged.file
        others = others_of(
            damaged.file,
            run=place / ("cache" if of_cache else "run"),
            other_run=prepared.folder / "other" / "run",
            other_moment=prepared.folder / other_moment / "run",
        )
        if not damage(path, damaged.kind, random.Random(seed), others):
            return
        outcome = prepared.call(place, verb, seconds=20)
        yield verb, judge(damaged, place, verb, outcome, expected), outcome


def judge(damaged: Damage, place: Path, verb: str, outcome: Outcome, expected: Answer) -> str:
    """Return the verdict on an outcome."""
    if outcome.code >= 128:
        return "hang"
    name = Path(damaged.file).name  # the file, or the folder that it makes unusable
    folder = "cache" if damaged.state == "cache" else f"run/{damaged.file.rpartition('/')[0]}"
    if outcome.refused_in_one_line():
        return "noticed" if name in outcome.stderr or (folder != "run/" and folder in outcome.stderr) else "unnamed"
    if outcome.has_traceback() or outcome.code:
        return "traceback"
    try:
        same = read_answer(place, verb, outcome) == expected
    except (OSError, ValueError, LookupError, TypeError):  # the result is not even a readable run
        same = False
    if not same:
        return "WRONG"
    return "recovered" if name in outcome.stderr else "harmless"


@pytest.mark.slow
@pytest.mark.parametrize(("family", "state"), list(product(FAMILIES, (*STATES, "cache"))) if FACTOR > 1 else SLICE)
def test_damaged_files_are_reported_recovered_or_harmless(
    prepared: PREPARE, tmp_path: Path, family: str, state: str
) -> None:
    own = prepared(family)
    chance = random.Random(f"{family} {state} {os.environ.get('TERCET_HOSTILE_SEED', '0')}")
    damages = all_damages(own, state)
    chosen = chance.sample(damages, min(len(damages), QUICK * FACTOR))
    bad: list[str] = []
    for number, damaged in enumerate(chosen):
        for verb, verdict, outcome in attack_with(own, damaged, tmp_path / "place", number):
            said = last_words(outcome)
            note(file=damaged.label, kind=damaged.kind, verb=verb, verdict=LETTERS[verdict], said=said)
            if verdict in BAD:
                bad.append(f"{damaged}: {verb}: {verdict}: {said}")
    assert not bad, f"{len(bad)} bad endings:\n" + "\n".join(bad)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["compared/settings.json", "run/run.json"])
def test_damaged_settings_of_a_comparison_are_reported(prepared: PREPARE, tmp_path: Path, file: str) -> None:
    own, place = prepared("text"), tmp_path / "place"
    for kind in ("cut in half", "a folder", "page of zeros"):
        own.lay_out(place)
        (place / "compared").mkdir()
        (place / "compared" / "settings.json").write_text('{"asked": {}, "arithmetic": {}}')
        assert damage(place / file, kind, random.Random(0), {})
        outcome = own.call(place, "compare")
        assert outcome.refused_in_one_line(), outcome
        assert file in outcome.stderr


def last_words(outcome: Outcome) -> str:
    """Return the last line on stderr, with the place in the package for a traceback."""
    frames = re.findall(r'tercet/([\w/]+\.py)", line (\d+)', outcome.stderr)
    place = f" at {':'.join(frames[-1])}" if outcome.has_traceback() and frames else ""
    return (outcome.stderr.strip().splitlines() or ["nothing on stderr"])[-1][-200:] + place

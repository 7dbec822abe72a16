"""Short runs to damage, kill and starve: a finished one, an interrupted one, and one with another seed.

Every command runs in a forked child without the compiled kernels, so results are bitwise identical.
"""

import csv
import errno
import hashlib
import importlib
import json
import os
import pkgutil
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jaxtyping
import torch
from attack import Outcome, attack_function, limit_address_space

import tercet
from tercet.cli.main import main
from tercet.settings_yaml import write_yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from tiny_runs import PAIRS, TINY

FACTOR = int(os.environ.get("TERCET_HOSTILE", "1"))
FAMILIES = ("text", "pairs", "masked")
SECONDS = 20.0  # a tiny run takes one second, so longer ones hang
MEMORY = 1 << 30  # more than a child needs beyond its parent
STOP_STEP = 6
# These settings allow exports to other programs.
CHANGES: dict[str, dict[str, Any]] = {
    "text": {"data": {"tokenizer": {"kind": "characters", "eos": True}}},
    "pairs": {"model": {"encoder": {"qk_norm": False}, "decoder": {"qk_norm": False}}},
    "masked": {},
}
CLOCK = ("seconds", "tokens_per_second")
STATES = ("finished", "stopped")

# Arguments of each command, run in a folder with `run`, and the files that it writes.
FAMILY_VERBS: dict[str, dict[str, list[str]]] = {
    "text": {"generate": ["run", "--prompt", "3 times", "--seed", "1", "--max-new-tokens", "8"]},
    "pairs": {"translate": ["run", "--input", "in.txt", "--quiet"]},
    "masked": {"fill": ["run", "3 times [MASK] is"]},
}
READERS: dict[str, list[str]] = {
    "evaluate": ["run"],
    "inspect": ["run"],
    "convert": ["run", "converted"],
    "plot": ["run", "loss", "--out", "loss.png"],
    "explore": ["run", "--export", "page.html"],
    "compare": ["run", "other", "--out", "compared", "--quiet"],
}
TRAIN = ["recipe.yaml", "--out", "run", "--quiet"]


@dataclass(frozen=True)
class Answer:
    """Output of a command on stdout and in files, without times."""

    stdout: str
    files: dict[str, str]


@dataclass
class PreparedRuns:
    """The runs of a family, each in a folder that is only copied.

    Attributes:
        folder: Contains `data`, `cache`, and `finished`, `stopped` and `other` with a folder `run` each.
    """

    family: str
    folder: Path
    answers: dict[tuple[str, str], Answer | None] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def verbs(self) -> dict[str, list[str]]:
        return {"train": TRAIN, **FAMILY_VERBS[self.family], **READERS}

    def lay_out(self, place: Path, state: str | None = "finished", *, own_cache: bool = False) -> Path:
        """Create a working folder with the recipe and a copy of the run in that state."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name in ("recipe.yaml", "in.txt"):
            shutil.copy(self.folder / "data" / name, place / name)
        if state is not None:
            shutil.copytree(self.folder / state / "run", place / "run", symlinks=True)
            (place / "other").symlink_to(self.folder / "other" / "run")
        if own_cache:
            shutil.copytree(self.cache, place / "cache")
        return place

    def call(self, place: Path, verb: str, arguments: list[str] | None = None, **options: Any) -> Outcome:
        """Run `tercet VERB` in a working folder, with its own cache if it has one, or else the shared one."""
        local_cache = place / "cache"
        return call(
            [verb, *(self.verbs[verb] if arguments is None else arguments)],
            place=place,
            cache=local_cache if local_cache.exists() else self.cache,
            **options,
        )

    def answer(self, state: str, verb: str) -> Answer | None:
        """Return the answer for the undamaged run, or None if the verb rejects that state."""
        if (state, verb) not in self.answers:
            place = self.lay_out(self.folder / "reference", state)
            outcome = self.call(place, verb)
            assert outcome.code == 0 or outcome.refused_in_one_line(), (verb, outcome)
            self.answers[state, verb] = None if outcome.code else read_answer(place, verb, outcome)
        return self.answers[state, verb]


def prepare(family: str, folder: Path) -> PreparedRuns:
    """Train the required runs, once per folder."""
    prepared_runs = _RUNS_BY_FOLDER.get(folder)
    if prepared_runs is None:
        _import_everything()
        prepared_runs = _RUNS_BY_FOLDER[folder] = PreparedRuns(family, folder)
        data = folder / "data"
        data.mkdir(parents=True)
        (data / "in.txt").write_text(f"{PAIRS[7][0]}\n{PAIRS[30][0]}\n", encoding="utf-8")
        runs: dict[str, tuple[dict[str, Any], Callable[[], None]]] = {
            "other": ({"seed": 2}, lambda: None),
            "finished": ({}, lambda: None),
            "stopped": ({}, lambda: call_at_step(STOP_STEP, stop)),
        }
        for state, (settings, before) in runs.items():
            (data / "recipe.yaml").write_text(
                write_yaml(TINY[family](data, CHANGES[family], **settings)), encoding="utf-8"
            )
            place = prepared_runs.lay_out(folder / state, None)
            outcome = prepared_runs.call(place, "train", before=before)
            assert outcome.code == (0 if state != "stopped" else 128 + signal.SIGTERM), outcome
    return prepared_runs


_RUNS_BY_FOLDER: dict[Path, PreparedRuns] = {}


def call(
    arguments: list[str],
    *,
    place: Path,
    cache: Path,
    before: Callable[[], None] = lambda: None,
    wrap_command: Callable[[Callable[[], int]], int] = lambda command: command(),
    seconds: float = SECONDS,
) -> Outcome:
    """Run `tercet ARGUMENTS` in `place`. The child calls `before` first, then `wrap_command` with the command."""

    def work() -> int:
        os.chdir(place)
        os.environ.update(TERCET_CACHE=str(cache), TERCET_KERNEL="off")
        importlib.import_module("tercet.kernel.build").choose_kernels.cache_clear()
        jaxtyping.config.update("jaxtyping_disable", True)
        warnings.simplefilter("default")
        torch.set_num_threads(1)
        limit_address_space(MEMORY)  # so that reading /dev/zero to its end cannot exhaust the machine
        before()
        return wrap_command(lambda: main(arguments))

    return attack_function(work, seconds=seconds)


def call_at_step(step: int, act: Callable[[], None]) -> None:
    """Call `act` in this step of a training child."""
    from tercet.training.loop.interruption import Interruption

    plain = Interruption.after_step

    def after_step(self: Interruption, trainer: Any, module: Any) -> None:
        if trainer.global_step == step:
            act()
        plain(self, trainer, module)

    Interruption.after_step = after_step


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def read_answer(place: Path, verb: str, outcome: Outcome) -> Answer:
    """Return the output of a successful command."""
    files: dict[str, str] = {}
    match verb:
        case "train":
            files = final_state(place / "run")
        case "convert":
            files = {
                name: _hash(place / "converted" / name)
                for name in ("model.safetensors", "config.json", "tokenizer.json", "card.json")
            }
        case "plot":
            files = {"loss.png": _hash(place / "loss.png")}
        case "explore":
            files = {"page.html": _hash(place / "page.html")}
        case _:
            pass
    return Answer(outcome.stdout, files)


def final_state(run: Path) -> dict[str, str]:
    """Return weights and metrics, by name, which must not depend on interruptions."""
    state: dict[str, str] = {}
    for folder in ("best", "last"):
        state[f"{folder}/model.safetensors"] = _hash(run / folder / "model.safetensors")
        card = json.loads(read_regular(run / folder / "card.json"))
        state[f"{folder}/card.json"] = json.dumps([card["step"], card["metrics"]])
    rows = csv.DictReader(read_regular(run / "metrics.csv").decode().splitlines())
    figures = [{name: cell for name, cell in row.items() if name not in CLOCK} for row in rows]
    return {**state, "metrics.csv": json.dumps(figures)}


def list_files(folder: Path) -> list[str]:
    """Return every file below a folder as a relative name."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file. Pipes would block, and /dev/zero never ends.

    Raises:
        OSError: If the path is not a regular file.
    """
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return path.read_bytes()


def _hash(path: Path) -> str:
    return hashlib.sha256(read_regular(path)).hexdigest()[:16]


def _import_everything() -> None:
    """Import all modules once, so that no child has to."""
    for module in pkgutil.walk_packages(tercet.__path__, "tercet."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("matplotlib.pyplot", "pytorch_lightning", "sacrebleu", "scipy.stats"):
        with suppress(ImportError):
            importlib.import_module(name)

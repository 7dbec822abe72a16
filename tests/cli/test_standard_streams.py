"""Full or closed streams, a missing home or folder: one line or none, and never a traceback."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tercet.cli.main import VERBS, main

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")

# Shell commands that establish each condition before the program starts.
CONDITIONS: dict[str, str] = {
    "output full": "exec >/dev/full",
    "output closed": "exec >&-",
    "errors full": "exec 2>/dev/full",
    "errors closed": "exec 2>&-",
    "both full": "exec >/dev/full 2>&1",
    "both closed": "exec >&- 2>&-",
    "input closed": "exec <&-",
    "all closed": "exec <&- >&- 2>&-",
    "no home": "unset HOME",
    "missing home": "export HOME=/nonexistent/home",
    "missing folder": "mkdir gone && cd gone && rmdir ../gone",
    "missing temporary folder": "export TMPDIR=/nonexistent/tmp",
}
COMMANDS = [
    "--help", "--version", "learn", "learn start 1", "learn check 1", "--print-completion bash", "train --help",
    "recipes", "recipes demo", "data", "data look TEXT", "data TEXT", "data prepare TEXT --recipe demo --out tokens",
    "check TEXT",
    "inspect gpt2", "inspect RUN",
    "train demo --plan", "train demo --data TEXT --out new --set training.max_steps=2 --set task.sample_tokens=0",
    "train RUN --more 1", "generate RUN --prompt a --max-new-tokens 5 --seed 1", "generate RUN --json --prompt a",
    "chat RUN", "translate RUN --input TEXT", "fill RUN a", "embed RUN a", "embed RUN --query a --input TEXT",
    "classify RUN a", "evaluate RUN --data TEXT", "errors RUN --data TEXT", "evaluate RUN --per-line",
    "compare demo --set training.max_steps=1,2 --out sweep --data TEXT",
    "sweep demo --vary training.optimizer.lr=0.1,0.2 --sampler grid --set training.max_steps=x --data TEXT",
    "explore RUN --export page.html --text a",
    "serve RUN --port 99999", "plot RUN", "plot masks a", "convert RUN hf --to hf", "doctor", "doctor --verify RUN",
    "watch none", "watch RUN --export page.html", "nothing",
]  # fmt: skip


def start(command: str, condition: str, folder: Path, run: Path | None = None) -> "subprocess.CompletedProcess[bytes]":
    """Return the result of a command that runs in `folder` under this condition."""
    (folder / "text.txt").write_text("some words, and some more words. " * 60)
    words = command.replace("RUN", str(run)).replace("TEXT", str(folder / "text.txt"))
    program = f"{shlex.quote(sys.executable)} -m tercet {words}"
    environment = {**os.environ, "TERCET_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", "TERCET_KERNEL": "off"}
    return subprocess.run(
        ["/bin/sh", "-c", f"{condition}; exec {program}"], cwd=folder, env=environment, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=120, check=False,
    )  # fmt: skip


def check(completed: "subprocess.CompletedProcess[bytes]", command: str, condition: str) -> None:
    assert b"Traceback" not in completed.stderr + completed.stdout, (command, completed.stderr[-2000:])
    assert completed.returncode in (0, 2), (command, completed.returncode, completed.stderr[-2000:])
    if condition in ("output full", "output closed"):
        errors = [line for line in completed.stderr.splitlines() if line.startswith(b"tercet: error: ")]
        assert completed.returncode == 2, command
        assert len(errors) == 1, (command, completed.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("output full", b"tercet: error: cannot write to standard output: No space left on device; write it"),
        ("output closed", b"tercet: error: standard output is closed; redirect it to a file or to /dev/null"),
    ],
)
@pytest.mark.parametrize("command", ["train --help", "recipes"])
def test_results_that_cannot_be_written(command: str, condition: str, words: bytes, tmp_path: Path) -> None:
    completed = start(command, CONDITIONS[condition], tmp_path)
    assert completed.returncode == 2
    assert completed.stderr.startswith(words)
    assert len(completed.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("condition", ["errors full", "errors closed"])
def test_notes_that_cannot_be_written_are_dropped(condition: str, tmp_path: Path) -> None:
    assert start("nothing", CONDITIONS[condition], tmp_path).returncode == 2
    completed = start("recipes", CONDITIONS[condition], tmp_path)
    assert completed.returncode == 0
    assert b"demo" in completed.stdout
    assert completed.stderr == b""


@pytest.mark.exhaustive
def test_training_continues_if_progress_cannot_be_written(tmp_path: Path) -> None:
    command = next(command for command in COMMANDS if command.startswith("train demo --data"))
    assert start(command, CONDITIONS["errors full"], tmp_path).returncode == 0
    assert (tmp_path / "new" / "last" / "model.safetensors").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "text.txt").write_text("some words, and some more words. " * 60)
    settings = ("training.max_steps=1", "task.sample_tokens=0", "model.stack.n_layers=1", "model.stack.d_model=32")
    flags = [word for setting in settings for word in ("--set", setting)]
    assert (
        main(["train", "demo", "--data", str(folder / "text.txt"), "--out", str(folder / "run"), "--quiet", *flags])
        == 0
    )
    return folder / "run"


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_all_verbs_under_all_conditions(condition: str, run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for command in COMMANDS:
        completed = start(command, CONDITIONS[condition], tmp_path_factory.mktemp("at"), run)
        check(completed, command, condition)


def test_each_verb_is_among_the_commands() -> None:
    verbs = {command.split()[0] for command in COMMANDS}
    assert set(VERBS) <= verbs
    assert len(COMMANDS) * len(CONDITIONS) >= 400

"""Runs of the commands printed after "Next:", as in a shell, and of short trainings that print them."""

import io
import shlex
import signal
import subprocess
import sys

import pytest
from forked_program import start_forked

from tercet.cli.main import main

QUICK = [
    "training.max_steps=2", "training.precision=fp32", "training.compile=never", "training.accelerator=cpu",
    "training.devices=1", "training.validate_every=2", "training.save_every=2", "training.batch_ramp=null",
    "training.max_hours=null",
]  # fmt: skip
STACK = "{d_model: 16, n_layers: 1, n_heads: 2, d_ff: 16, d_head: 8}"
ROWS = ["task.batch_size=2", "task.micro_batch_size=2"]
DECODER = [*QUICK, *ROWS, f"model.stack={STACK}", "task.validation_tokens=256"]


def train(recipe: str, flags: list[str], keys: list[str]) -> None:
    sets = [word for key in keys for word in ("--set", key)]
    assert main(["train", recipe, "--quiet", *flags, *sets]) == 0


def next_lines(out: str) -> list[str]:
    """Return the commands after "Next:"."""
    assert "\nNext:\n" in out
    return [line.strip() for line in out.split("\nNext:\n")[-1].splitlines() if line.strip()]


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command in this process as a shell would; a server is started and stopped, a chat gets one message."""
    program, *words = shlex.split(line)
    assert program == "tercet"
    if words[0] == "serve":
        serve_and_stop(words)
        return
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"what follows 3?\n")))
    assert main(words) == 0, line


def serve_and_stop(words: list[str]) -> None:
    process = start_forked(*words, "--port", "0", stderr=subprocess.STDOUT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        output = ""
        for line in process.stdout:
            output += line
            if "http://" in line:
                break
        assert "http://" in output, output
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in (0, 130)

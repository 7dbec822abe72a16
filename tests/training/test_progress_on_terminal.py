"""The output of training on a pseudo-terminal."""

import fcntl
import io
import os
import struct
import sys
import termios
from pathlib import Path

import pytest
from tiny_runs import child, exit_code, tiny_recipe

from tercet.training import train

pytestmark = pytest.mark.slow


def terminal_output(folder: Path, *, lines: int = 40, term: str = "xterm-256color") -> str:
    """Return all output of a training on a terminal with this number of lines."""
    our_end, program_end = os.openpty()
    fcntl.ioctl(program_end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 90, 0, 0))

    def work() -> None:
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ["TERM"] = term
        for number in (0, 2):
            os.dup2(program_end, number)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        train(tiny_recipe(folder, max_steps=6, validate_every=2, log_every=1), folder / "run")
        sys.stderr.flush()

    training, output_bytes = child(work), b""
    os.close(program_end)
    while True:
        try:
            part = os.read(our_end, 65536)
        except OSError:  # the other end is closed
            break
        output_bytes += part
    os.close(our_end)
    assert exit_code(training) == 0, output_bytes.decode()
    return output_bytes.decode()


def test_the_losses_are_drawn_at_each_validation(tmp_path: Path) -> None:
    text = terminal_output(tmp_path)
    assert "┤" in text[: text.index("6/6")]
    assert "┤" not in text[text.rindex("6/6") :]  # removed at the end, before the summary


@pytest.mark.parametrize(
    ("lines", "term"), [(10, "xterm-256color"), pytest.param(40, "dumb", marks=pytest.mark.exhaustive)]
)
def test_small_terminal_shows_only_the_bar(tmp_path: Path, lines: int, term: str) -> None:
    text = terminal_output(tmp_path, lines=lines, term=term)
    assert "6/6" in text
    assert "┤" not in text
    assert "validation loss" in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_python_training_continues_if_progress_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script's log is on a full disk: `nohup python train.py 2> log`."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(full, write_through=True))
        train(tiny_recipe(tmp_path, max_steps=2, log_every=1), tmp_path / "run")
    assert (tmp_path / "run" / "last" / "model.safetensors").exists()

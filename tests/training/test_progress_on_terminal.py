"""What training shows on a terminal, seen from the terminal's side."""

import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from pathlib import Path
from tiny_runs import tiny_recipe
from tercet.training import train
folder = Path(sys.argv[1])
train(tiny_recipe(folder, max_steps=6, validate_every=2, log_every=1), folder / "run")
"""


def seen(folder: Path, *, lines: int = 40, **variables: str) -> str:
    """All that a training writes to a terminal of so many lines."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 90, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    command, said = [sys.executable, "-c", PROGRAM, str(folder)], b""
    with subprocess.Popen(command, env={**environment, **variables}, stdin=theirs, stderr=theirs) as training:
        os.close(theirs)
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            said += part
    os.close(ours)
    assert training.returncode == 0, said.decode()
    return said.decode()


def test_the_losses_are_drawn_at_each_validation(tmp_path: Path) -> None:
    text = seen(tmp_path)
    assert "┤" in text[: text.index("6/6")]
    assert "┤" not in text[text.rindex("6/6") :]  # taken away: what follows says how it went


@pytest.mark.parametrize(
    ("lines", "variables"),
    [(10, {}), pytest.param(40, {"TERM": "dumb"}, marks=pytest.mark.exhaustive)],
    ids=["too low", "dumb"],
)
def test_a_terminal_with_no_room_for_them_has_the_bar_alone(
    tmp_path: Path, lines: int, variables: dict[str, str]
) -> None:
    text = seen(tmp_path, lines=lines, **variables)
    assert "6/6" in text
    assert "┤" not in text
    assert "validation loss" in text

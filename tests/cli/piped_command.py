"""A command that reads a text from stdin, in this process."""

import io
import sys
from unittest import mock

import pytest

from tercet.cli.main import main


def run_command(
    arguments: list[str], capsys: pytest.CaptureFixture[str], stdin_text: str = "", *, code: int = 0
) -> tuple[list[str], str]:
    """Return the lines on stdout and the text on stderr of a command that reads `stdin_text` from stdin."""
    capsys.readouterr()
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin_text.encode()))):
        exit_code = main(arguments)
    out, err = capsys.readouterr()
    assert exit_code == code, err
    return out.split("\n")[:-1], err  # other line ends may be part of a text

"""Malformed settings on the command line and in Python."""

from pathlib import Path
from typing import Any

import pytest
from refusal import HUGE, MAX_CHARACTERS, TOO_LARGE, check_error

import tercet
from tercet.cli.main import main
from tercet.config import UserError


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "demo", "--print-config", "--set", "k" * 10**6 + "=1"],
        ["train", "demo", "--print-config", "--set", "training.max_steps=" + "v" * 10**6],
        ["train", "demo", "--print-config", "--set", "training.\x1b[2J=1"],
        ["train", "demo", "--print-config", "--set", "data=5", "--source", "a"],
        ["train", "demo", "--print-config", "--set", "task={kind: [a]}"],
        ["train", "numbers", "--print-config", "--set", "data=5"],
        ["train", "demo", "--print-config", "--data", "a\0b"],
        ["train", "demo", "--print-config", "--data", "\ud800"],
        ["train", "demo", "--print-config", "--data", ""],
        ["train", "demo", "--print-config", "--pretrained", "a\0b"],
        ["train", "demo", "--print-config", "--pretrained", "a" * 5000],
        ["train", "demo", "--print-config", "--encoding", "\0"],
        ["train", "../recipes/demo", "--print-config"],
        ["train", "", "--print-config"],
        ["train", "\x1b[2J"],
        ["train", "r" * 10**6],
        *(
            ["train", "demo", "--out", out]
            for out in ("", "-", "a\0b", "a\nb", "a" * 300, "a/" * 5000, "\udcff", "\x1b[2J")
        ),
        *(["compare", "demo", "--vary", "training.seed=1,2", "--out", out] for out in ("", "-", "a\0b", "a" * 300)),
        ["compare", "demo", "--seeds", "9" * 9],
        ["compare", "demo", "--seeds", "1", "--set", "training=5"],
        ["compare", "demo", "--vary", "training.max_steps=" + "1," * 10**4 + "2"],
        ["compare", "demo", "--data", "a", "--set", "data=5"],
        ["compare", "a\0b", "demo"],
        ["compare", "a" * 5000, "demo"],
        ["plot", "schedules", "--steps", "9" * 5000],
        ["plot", "schedules", "--steps", "1000000000"],
        ["plot", "schedules", "512:" + "9" * 400],
        ["plot", "schedules", "--lr", "nan"],
        ["plot", "schedules", "--schedule", "{kind: [a]}"],
        ["plot", "positions", "--d-model", "1000000"],
        ["plot", "positions", "--base", "inf"],
        ["plot", "positions", "--seed", "-1"],
        ["plot", "positions", "{kind: rotary, base: -1}"],
        ["plot", "smoothing", "--vocabulary", "1000000000000"],
        ["plot", "model", "gpt2", "--batch", "-1"],
        ["plot", "model", "gpt2", "--out", "a\0.svg"],
        ["plot", "model", "gpt2", "--out", "a" * 300 + ".svg"],
        ["plot", "model", "m" * 10**5],
        ["plot", "model", "a\0b"],
        ["plot", "run", "attention", "--prompt", "a", "--layer", "-1"],
        ["plot", "run", "--out", ""],
        ["plot", "r" * 10**5],
        ["recipes", "\x1b[2J"],
        ["recipes", "r" * 10**6],
        ["\x1b[2J"],
        ["train", "demo", "--\x1b[2J"],
        ["train", "demo", "--" + "f" * 10**6],
    ],
    ids=lambda arguments: ascii(" ".join(arguments)[:60]),
)
def test_malformed_command_lines_are_rejected(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert err.startswith("tercet: error: ")
    assert len(err) <= MAX_CHARACTERS
    assert err.rstrip("\n").isprintable(), ascii(err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        {"recipe": "demo", "changes": {1: 2}},
        {"recipe": "demo", "changes": [1]},
        {"recipe": "demo", "changes": "training.max_steps=5"},
        {"recipe": "demo", "changes": {"": 1}},
        {"recipe": "demo", "changes": {"a." * 10_000: 1}},
        {"recipe": "demo", "changes": {"training.max_steps": HUGE}},
        {"recipe": "demo", "changes": {"training.optimizer.lr": TOO_LARGE}},
        {"recipe": "demo", "changes": {"training": object()}},
        {"recipe": "demo", "changes": {"task": {"kind": []}}},
        {"recipe": "demo", "data": "a\0b"},
        {"recipe": "demo", "data": 5},
        {"recipe": "demo", "pretrained": "\0"},
        {"recipe": 5},
        {"recipe": None},
        {"recipe": "a\0.yaml"},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_malformed_arguments_in_python_are_rejected(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        tercet.train(**arguments, quiet=True)
    check_error(error.value)
    assert not list(tmp_path.iterdir())

"""The script that types the README finds its commands, shortens them, and reports those that fail."""

import shlex
from pathlib import Path

import pytest
from readme_from_wheel import (
    ROOT,
    SERVERS,
    Session,
    blocks,
    install_line,
    named_formats,
    shell_lines,
    shorten,
    write_files,
)

from tercet.cli.main import VERBS, make_parser, read_arguments

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = [line for language, code in blocks(README) if language == "sh" for line in shell_lines(code)]
COMMANDS = [shlex.split(line.rpartition("| ")[2].partition(" <")[0]) for line in LINES]


def test_every_line_of_the_readme_is_run_or_left_out() -> None:
    assert {words[0] for words in COMMANDS} == {"make", "pip", "uvx", "tercet"}
    verbs = [words[1] for words in COMMANDS if words[0] == "tercet"]
    assert {"train", "generate", "translate", "fill", "classify", "convert", *SERVERS} <= {*verbs} <= {*VERBS}
    assert sum(language == "python" for language, _ in blocks(README)) >= 3


def test_conversion_names_all_formats() -> None:
    [found] = [formats for _, code in blocks(README) if (formats := named_formats(code))]
    assert sorted(found) == ["ctranslate2", "gguf", "hf", "onnx"]


def test_fewer_steps_are_accepted() -> None:
    for line in LINES:
        words = shlex.split(shorten(line, 3).rpartition("| ")[2].partition(" <")[0])
        if words[0] == "tercet":
            read_arguments(*make_parser(words[1:]), words[1:])
        if words[:2] == ["tercet", "train"]:
            assert words[-2:] in (["--set", "training.max_steps=3"], ["--more", "3"])
    [python] = [code for _, code in blocks(README) if "tercet.train(" in code]
    assert '{"training.max_steps": 3}' in shorten(python, 3)
    assert shorten(python, None) == python
    epochs = "tercet train demo --set training.max_epochs=2 --out a"
    assert shorten(epochs, 3) == "tercet train demo --out a --set training.max_steps=3"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pip install tercet", "pip install '/dist/a.whl'"),
        ("pip install 'tercet[explore,serve]' openai", "pip install '/dist/a.whl[explore,serve]' openai"),
    ],
)
def test_wheel_is_installed_instead_of_the_published_package(line: str, expected: str) -> None:
    assert install_line(line, Path("/dist/a.whl")) == expected


def test_files_that_the_readme_names_are_written(tmp_path: Path) -> None:
    write_files(tmp_path)
    given = {word.rstrip("/") for words in COMMANDS for word in words if word.startswith("my_texts")}
    assert given == {"my_texts.txt", "my_texts"}
    assert all((tmp_path / name).exists() for name in (*given, "labels.csv", "pairs.tsv", "texts.txt"))


@pytest.mark.slow
def test_failed_command_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(tmp_path, tmp_path / "environment")
    assert session.run("echo right") == "right\n"
    session.run("echo wrong >&2; exit 3")
    assert session.failures == ["echo wrong >&2; exit 3"]
    assert "exit code 3\nwrong" in capsys.readouterr().out

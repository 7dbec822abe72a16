"""An empty path, such as the value of a variable that is not set, is not the current folder."""

import json
from pathlib import Path

import pytest

from tercet.cli.main import main

RUN_VERBS = (
    "generate",
    "chat",
    "translate",
    "fill",
    "embed",
    "classify",
    "evaluate",
    "errors",
    "explore",
    "serve",
    "watch",
    "plot",
)


@pytest.mark.parametrize(
    "arguments",
    [
        *([verb, ""] for verb in RUN_VERBS),
        ["serve", "run", ""],
        ["inspect", ""],
        ["convert", "", "out"],
        ["train", ""],
        ["train", "demo", "--data", ""],
        ["train", "finetune-lm", "--pretrained="],
        ["train", "numbers", "--source", ""],
        ["compare", ""],
        ["sweep", "", "--vary", "training.optimizer.lr=0.1,0.2"],
        ["data", ""],
        ["data", "look", ""],
        ["data", "prepare", "", "--out", "tokens"],
        ["doctor", "--verify", ""],
        ["evaluate", "run", "--data", ""],
        ["evaluate", "run", "--compare", ""],
        ["embed", "run", "--query", "a", "--vectors", ""],
        ["translate", "run", "--prefix", ""],
        ["generate", "run", "--input", ""],
        ["generate", "run", "--draft", ""],
    ],
)
def test_an_empty_path_is_rejected(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert " is empty; pass a file or folder\n" in err
    assert err.count("\n") == 1


def test_an_empty_text_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "run", ""]) == 2
    assert "no such folder: run" in capsys.readouterr().err


@pytest.mark.parametrize("schema", ["", " "])
def test_an_empty_schema_is_rejected(schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert main(["generate", str(tmp_path), "--json-schema", schema]) == 2
    assert "--json-schema: the argument is empty; pass a file, or pass the schema itself" in capsys.readouterr().err

"""Files to write and results to compare with are checked before a model is loaded."""

import json
from pathlib import Path

import pytest

from tercet.cli.main import main

RESULT = {"bleu": 1, "chrf": 2.5, "signature": "a", "chrf_signature": "b", "protocol": "c", "references": "d"}


def error_of(arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message of a command that fails without output."""
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    return err.removeprefix("tercet: error: ").rstrip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("embed no --output folder.npz", "--output folder.npz is a folder; pass a file name, such as folder.npz/vec"),
        ("embed no --output a.jsonl --input a.jsonl", "--output a.jsonl is also an input of this command; choose ano"),
        ("evaluate no --output folder.npz", "--output folder.npz is a folder; pass a file name, such as folder.npz/tr"),
        ("evaluate no --output a.jsonl --source a.jsonl", "--output a.jsonl is also an input of this command; choose"),
        ("evaluate no --output b --source a.jsonl --target b", "--output b is also an input of this command; choose"),
        ("evaluate no --output b --data b", "--output b is also an input of this command; choose another file"),
        ("evaluate no --output b --compare b", "--output b is also an input of this command; choose another file"),
        ("translate no --attention folder.png", "--attention folder.png is a folder; pass a file name, such as"),
        ("embed no --output -", "argument --output: '-' is not a valid file or folder name; choose another"),
        ("evaluate no --output -", "argument --output: '-' is not a valid file or folder name; choose another"),
        ("translate no --attention -", "argument --attention: '-' is not a valid file or folder name; choose another"),
        ("explore no --export -", "argument --export: '-' is not a valid file or folder name; choose another"),
        ("convert no -", "argument DST: '-' is not a valid file or folder name; choose another"),
        ("plot model gpt2 --out x/a.svg", "--out x/a.svg: no such folder: x; create it first"),
    ],
)
def test_unsuitable_output_is_rejected(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("folder.npz", "folder.png"):
        Path(folder).mkdir()
    for file in ("a.jsonl", "b"):
        Path(file).write_text('{"text": "a"}\n')
    assert error_of(arguments, capsys).startswith(message)
    assert Path("a.jsonl").read_text() == Path("b").read_text() == '{"text": "a"}\n'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bleu": None}, "cannot compare a result with an invalid bleu; write it with `tercet evaluate --json`"),
        ({"chrf": "2.5"}, "cannot compare a result with an invalid chrf"),
        ({"references": 3}, "cannot compare a result with an invalid references"),
        ({"output": 3, "output_sha256": "x"}, "cannot compare a result with an invalid output"),
        ({"output": "x", "output_sha256": []}, "cannot compare a result with an invalid output_sha256"),
    ],
)
def test_invalid_result_to_compare_with_is_rejected(
    change: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**RESULT, **change}))
    assert error_of(f"evaluate none --compare {path}", capsys).startswith(f"--compare {path}: {message}")
    path.write_text(json.dumps(RESULT))
    assert error_of(f"evaluate none --compare {path}", capsys) == "no such folder: none"
    path.write_text(json.dumps({"loss_nats_per_token": 2.0}))
    assert "cannot compare a result without bleu and chrf and" in error_of(f"evaluate none --compare {path}", capsys)

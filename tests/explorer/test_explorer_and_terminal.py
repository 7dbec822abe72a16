"""The explorer and `tercet inspect` report the same numbers for one text."""

import json
from pathlib import Path
from typing import Any

import pytest
from explored import BERTS, TRANSLATORS, numbers, trained_model

from tercet.checkpoint import Card, load_model, save_model
from tercet.cli.main import main
from tercet.explorer import Answers

MODELS = [
    "sandwich, rotary, grouped, gated, qk norm",
    pytest.param("pre, rotary, plain head", marks=pytest.mark.exhaustive),
    pytest.param("1 + 2", marks=pytest.mark.exhaustive),
]


def on_terminal(run: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["inspect", str(run), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_explorer_and_terminal_report_the_same_numbers(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded_model = trained_model(name)
    save_model(tmp_path / "run", loaded_model.model, loaded_model.tokenizer, Card())
    loaded_model = load_model(tmp_path / "run")
    stack = "decoder" if name in TRANSLATORS else "stack"
    text = "ab[MASK]d" if name in BERTS else "bad cafe"
    arguments = ["--prompt", text, "--top", "5", "--heads", "--attribution"]
    terminal = on_terminal(
        loaded_model.folder, [*arguments, "--ablate", f"{stack}.blocks.1.self_attention.heads:1"], capsys
    )
    answers = Answers(loaded_model)
    plain_query = answers.answer("look", {"ask": {"text": text}})["ask"]
    plain = on_terminal(loaded_model.folder, arguments, capsys)
    edits = [{"name": f"{stack}.blocks.1.self_attention.heads", "heads": [1]}]
    for report, query in ((plain, plain_query), (terminal, {**plain_query, "edits": edits})):
        look = answers.answer("look", {"ask": query})
        prompt = report["prompt"]
        assert list(prompt["sides"]) == [side["stack"] for side in look["sides"]]
        assert prompt["lens"]["names"] == look["lens"]["names"]
        rows = list(zip(*look["lens"]["ids"], strict=True))  # by row, as in the terminal
        assert [[[token["id"] for token in cell] for cell in row] for row in prompt["lens"]["rows"]] == [
            list(row) for row in rows
        ]
        probabilities = numbers(look["lens"]["probabilities"]).swapaxes(0, 1).tolist()
        assert [
            [[token["probability"] for token in cell] for cell in row] for row in prompt["lens"]["rows"]
        ] == probabilities
        assert prompt["loss"] == look["loss"]
        heads = answers.answer("heads", {"ask": query})
        answered_rows = {row["name"]: row for row in heads["rows"]}
        assert len(report["heads"]) > 0
        for row in report["heads"]:
            assert row == answered_rows[row["name"]]
        row, token = report["attribution"]["row"], report["attribution"]["id"]
        attribution = answers.answer("attribution", {"ask": query, "at": row, "id": token})
        assert attribution["names"] == report["attribution"]["names"]
        assert attribution["values"] == report["attribution"]["values"]

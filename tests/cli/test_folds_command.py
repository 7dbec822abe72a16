"""`tercet compare --folds`: the tables, an interruption after one fold, JSON, and one line per error."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forked_program import start_forked

from tercet.cli.main import main

SETTINGS = [
    "data.group_field=patient",
    "data.tokenizer={kind: words}",
    "model.max_len=8",
    "model.stack.d_model=16",
    "model.stack.n_layers=1",
    "model.stack.n_heads=2",
    "task.batch_size=8",
    "task.sample_texts=0",
    "training.max_steps=6",
    "training.validate_every=3",
    "training.save_every=3",
    "training.precision=fp32",
    "training.compile=never",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "notes.csv"
    kinds = ("cold", "warm")
    rows = [f"note {n % 9} on a {kinds[n % 2]} day,{kinds[n % 2]},p{n % 12}" for n in range(72)]
    path.write_text("text,label,patient\n" + "\n".join(rows) + "\n")
    return path


def cross_validating(table: Path, out: Path, *flags: str) -> list[str]:
    sets = [word for change in SETTINGS for word in ("--set", change)]
    return ["compare", "classify-docstrings", "--data", str(table), "--out", str(out), "--device", "cpu", *sets, *flags]


@pytest.fixture(scope="module")
def whole(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted cross-validation in three folds of patients."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert main(cross_validating(table, out, "--folds", "3", "--quiet")) == 0
    return out


def read_scores(out: Path) -> list[tuple[int, float, float]]:
    """Return fold, loss and accuracy of each run."""
    comparison: dict[str, Any] = json.loads((out / "comparison.json").read_text())
    return [(run["fold"], run["nats_per_label"], run["accuracy"]) for row in comparison["rows"] for run in row["runs"]]


@pytest.mark.slow
def test_table_has_a_line_per_fold(whole: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(cross_validating(table, whole, "--folds", "3")) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for fold, nats, accuracy in read_scores(whole):
        assert any(line.startswith(f"fold {fold} {nats:.4f} {accuracy:.1%}") for line in lines)
    assert sum(line.startswith(("mean ", "standard deviation ", "95 % interval ")) for line in lines) == 3
    assert "3 of 3: classify-docstrings, seed=1, fold=3, trained already" in err
    assert out.splitlines()[-1] == str(whole / "comparison.png")


@pytest.mark.slow
def test_json_equals_the_file(whole: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(cross_validating(table, whole, "--folds", "3", "--json")) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison == json.loads((whole / "comparison.json").read_text())
    assert comparison["folds"] == 3
    (row,) = comparison["rows"]
    low, high = row["accuracy"]["interval"]
    assert low <= row["accuracy"]["mean"] <= high


@pytest.mark.slow
def test_interrupted_after_one_fold_it_ends_with_the_same_table(
    whole: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = cross_validating(table, out, "--folds", "3")
    process = start_forked(*command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("2 of 3: "):
            break
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    assert not (out / "comparison.json").exists()
    assert main(command) == 0
    assert "1 of 3: classify-docstrings, seed=1, fold=1, trained already\n" in capsys.readouterr().err
    assert read_scores(out) == read_scores(whole)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--folds", "1"], "--folds: folds=1 must be at least 2"),
        (["--folds", "x"], "invalid int value: 'x'"),
        (["--folds", "13"], "13 folds, but only 12 distinct groups; pass --folds 12 or fewer"),
        (["--folds", "3", "--vary", "data.validation=drawn,fold"], "--vary data.validation and --folds both set"),
        (
            ["--folds", "3", "--set", "data.validation={kind: held_out, source: b}", "--set", "data.group_field=null"],
            "classify-docstrings has a separate validation source, b, which --folds would not use",
        ),
    ],
)
def test_mistakes(
    flags: list[str], words: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(cross_validating(table, tmp_path / "out", *flags)) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "out").exists()

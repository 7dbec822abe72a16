"""`tercet compare`: the table, its JSON form, one line per error, and a command that is killed and run again."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from forked_program import start_forked

import tercet
from tercet.cli.main import main

TINY = [
    "data.validation=tail",
    "data.tokenizer={kind: characters}",
    "model.max_len=16",
    "model.stack.d_model=24",
    "model.stack.n_layers=1",
    "model.stack.n_heads=2",
    "task.batch_size=3",
    "training.max_steps=8",
    "training.validate_every=4",
    "training.save_every=4",
    "task.sample_tokens=0",
    "training.precision=fp32",
    "training.compile=never",
]
TEXT = "".join(f"{number} is followed by {number + 1}.\n" for number in range(400))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(TEXT)
    return path


def comparing(text: Path, out: Path, *flags: str) -> list[str]:
    sets = [word for change in TINY for word in ("--set", change)]
    return ["compare", "demo", "--data", str(text), "--out", str(out), "--device", "cpu", *sets, *flags]


GRID = ["--vary", "model.stack.placement=pre,post", "--vary", "model.stack.position=learned,{kind: rotary, base: 50}"]


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted comparison: two placements, two positions, two seeds."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert main(comparing(text, out, *GRID, "--seeds", "1,2", "--quiet")) == 0
    return out


def losses(comparison: dict[str, Any]) -> list[tuple[str, int, float, float]]:
    return [
        (row["name"], run["seed"], run["nats_per_token"], run["bits_per_byte"])
        for row in comparison["rows"]
        for run in row["runs"]
    ]


def read(out: Path) -> dict[str, Any]:
    return json.loads((out / "comparison.json").read_text())


@pytest.mark.slow
def test_the_table(whole: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(comparing(text, whole, *GRID, "--seeds", "1,2")) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    for heading in ("nats per token", "over seeds", "bits per byte", "parameters", "seconds", "tokens/s"):
        assert heading in lines[0]
    rows = [line for line in lines if "placement=" in line and ".." in line]
    comparison = read(whole)
    assert len(rows) == len(comparison["rows"]) == 4
    for line, row in zip(rows, comparison["rows"], strict=True):
        spread = row["nats_per_token"]
        assert f"{spread['mean']:.4f}  {spread['min']:.4f} .. {spread['max']:.4f}" in line
        assert f"{row['parameters']:,}" in line
        assert line.lstrip().startswith("* " if row["rank"] == 1 else "placement=")
    assert lines[-1] == str(whole / "comparison.png")
    assert "1 of 8: placement=pre, position=learned, seed=1, trained already" in err
    assert "8 of 8: placement=post, position=rotary+base=50, seed=2, trained already" in err


@pytest.mark.slow
def test_json_on_stdout_equals_the_file(whole: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(comparing(text, whole, *GRID, "--seeds", "1,2", "--json")) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison == read(whole)
    means = [row["nats_per_token"]["mean"] for row in comparison["rows"]]
    assert means == sorted(means)
    assert [row["best"] for row in comparison["rows"]] == [True, False, False, False]
    for row in comparison["rows"]:
        seeds = [run["nats_per_token"] for run in row["runs"]]
        assert row["nats_per_token"]["mean"] == pytest.approx(sum(seeds) / 2)
        assert [run["steps"] for run in row["runs"]] == [8, 8]
        assert row["seconds"]["min"] > 0
        assert row["tokens_per_second"]["min"] > 0


@pytest.mark.slow
def test_python_gives_the_same_comparison(whole: Path, text: Path) -> None:
    changes = {path: value for path, _, value in (change.partition("=") for change in TINY)}
    plain: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in changes.items()}
    comparison = tercet.compare(
        "demo",
        vary={
            "model.stack.placement": ["pre", "post"],
            "model.stack.position": ["learned", {"kind": "rotary", "base": 50}],
        },
        seeds=[1, 2], data=text, changes=plain | {"data.tokenizer": {"kind": "characters"}}, out=whole, quiet=True,
    )  # fmt: skip
    assert comparison.to_dict() == read(whole)
    assert [row.name for row in comparison.rows] == [row["name"] for row in read(whole)["rows"]]
    assert comparison.notes
    figure = comparison.plot()
    first, *_ = (row.settings["placement"] for row in comparison.rows)
    second = "pre" if first == "post" else "post"
    assert [axes.get_title() for axes in figure.axes][:2] == [f"placement={first}", f"placement={second}"]
    labels = [label.get_text() for label in figure.axes[0].get_legend().get_texts()]
    assert sorted(labels) == ["position=learned", "position=rotary+base=50"]


@pytest.mark.slow
@pytest.mark.parametrize("delay", [pytest.param(0.0, marks=pytest.mark.exhaustive), 0.15])
def test_killed_and_repeated_comparison_gives_the_same_table(
    whole: Path, text: Path, tmp_path: Path, delay: float, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = comparing(text, out, *GRID, "--seeds", "1")
    process = start_forked(*command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("3 of 4: "):
            break
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    assert not (out / "comparison.json").exists()
    records = [*out.glob("*/run.json")]  # a run that has just started has none
    finished_runs = [path.parent for path in records if '"finished": true' in path.read_text()]
    assert 2 <= len(finished_runs) <= 3

    assert main(command) == 0
    err = capsys.readouterr().err
    assert "2 of 4: placement=pre, position=rotary+base=50, seed=1, trained already\n" in err
    assert err.count("trained already\n") == len(finished_runs)
    assert "4 of 4: placement=post, position=rotary+base=50, seed=1\n" in err
    assert sorted(losses(read(out))) == sorted(row for row in losses(read(whole)) if row[1] == 1)
    for folder in finished_runs:
        assert (out / folder.name / "last" / "model.safetensors").read_bytes() == (
            whole / folder.name / "last" / "model.safetensors"
        ).read_bytes()


@pytest.mark.slow
def test_ctrl_c_saves_and_ends_with_130(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = comparing(text, out, *GRID, "--set", "training.max_steps=100000", "--set", "training.log_every=1")
    process = start_forked(*command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stderr is not None
    end = time.monotonic() + 60
    metrics = out / "placement=pre,position=learned,seed=1" / "metrics.csv"
    while not (metrics.exists() and metrics.stat().st_size > 2000) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "tercet: stopped by SIGINT: saved in" in err
    assert "run the same command again to resume" in err
    assert list((metrics.parent / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--vary", "model.stack.placment=pre,post"], "unknown key 'placment'; did you mean 'model.stack.placement'?"),
        (["--vary", "model.stack.placement=pre,poste"], "got 'poste'"),
        (["--vary", "model.stack.placement="], "--vary model.stack.placement: no values"),
        (["--vary", "model.stack.placement"], "expected key=value,value"),
        (["--vary", "model.stack.placement=pre,pre"], "the value pre is repeated"),
        (["--vary", "model.stack.n_layers=2,3"], "model.stack.n_layers is both in --set and in --vary"),
        (["--vary", "data.source=a,b"], "data.source is both in --set and in --vary"),
        (["--vary", "model.stack.placement=pre,post", "--seeds", "x"], "--seeds 'x': expected seeds"),
        (["--vary", "training.seed=1,2"], "pass --seeds 1,2,3 instead"),
        (["--set", "data.source=other"], "data.source is set by both --set and --data"),
        ([], "demo has nothing to be compared with; add another recipe or run, --vary, --seeds or --folds"),
    ],
)
def test_mistakes(flags: list[str], words: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(comparing(text, tmp_path / "out", *flags)) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_another_comparison_in_the_folder(whole: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(comparing(text, whole, *GRID, "--seeds", "1,3")) == 2
    err = capsys.readouterr().err
    assert "contains a comparison with other settings (seeds: [1, 2] -> [1, 3]); pass another --out" in err


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["demo", "nutshel"], "no such recipe or run: 'nutshel'; did you mean 'nutshell'?"),
        (["demo", "demo"], "is given twice; remove one (to measure the variance, pass --seeds 1,2,3)"),
        (["demo", "none.yaml"], "no such file: none.yaml"),
    ],
)
def test_unknown_names_are_rejected(
    names: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *names, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)

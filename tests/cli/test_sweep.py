"""`tercet sweep`: the tables, their JSON form, one line per error, and a command that is stopped and repeated."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_program import start_forked

import tercet
from tercet.cli.main import main
from tercet.training.recipe.recipe import load_recipe

TINY = [
    "data.validation=tail", "data.tokenizer={kind: characters}", "model.max_len=16", "model.stack.d_model=24",
    "model.stack.n_layers=1", "model.stack.n_heads=2", "task.batch_size=3", "training.max_steps=9",
    "training.validate_every=3", "training.save_every=9", "task.sample_tokens=0", "training.precision=fp32",
    "training.compile=never",
]  # fmt: skip
SPACE = ["--vary", "training.optimizer.lr=0.001..0.1", "--vary", "model.stack.placement=pre,post"]
FLAGS = [*SPACE, "--trials", "3", "--sampler", "random", "--seeds", "2"]
OTHER = [*SPACE, "--trials", "4", "--sampler", "random", "--seeds", "2"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(400)))
    return path


def sweeping(text: Path, out: Path, *flags: str) -> list[str]:
    sets = [word for change in TINY for word in ("--set", change)]
    return ["sweep", "demo", "--data", str(text), "--out", str(out), "--device", "cpu", *sets, *flags]


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted sweep."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert main(sweeping(text, out, *FLAGS, "--quiet")) == 0
    return out


def read(out: Path) -> dict[str, Any]:
    return json.loads((out / "sweep.json").read_text())


@pytest.mark.slow
def test_the_tables(whole: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(sweeping(text, whole, *FLAGS)) == 0
    out, err = capsys.readouterr()
    result = read(whole)
    lines = out.splitlines()
    assert lines[0].split() == ["trial", "lr", "placement", "validation", "loss", "steps"]
    first = next(trial for trial in result["trials"] if trial["number"] == result["best"])
    settings = first["settings"]
    assert lines[1].split() == [
        str(first["number"]), settings["lr"], settings["placement"], f"{first['losses'][-1]:.4f}", "9"
    ]  # fmt: skip
    assert "the best of 3 trials is too good, because it was selected" in " ".join(out.split())
    assert result["verdict"] in " ".join(out.split())
    assert " ".join(out.split()).endswith(result["command"])
    assert "4 of 4: " in err  # of the confirmation
    assert "trained already" in err


@pytest.mark.slow
def test_json_on_stdout_equals_the_file(whole: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(sweeping(text, whole, *FLAGS, "--json", "--quiet")) == 0
    printed, err = capsys.readouterr()
    assert json.loads(printed) == read(whole)
    assert err == ""


@pytest.mark.slow
def test_python_gives_the_same_result(whole: Path, text: Path) -> None:
    changes = {path: value for path, _, value in (change.partition("=") for change in TINY)}
    plain: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in changes.items()}
    result = tercet.sweep(
        "demo",
        vary={"training.optimizer.lr": "0.001..0.1", "model.stack.placement": ["pre", "post"]},
        trials=3, sampler="random", seeds=2, data=text, changes=plain | {"data.tokenizer": {"kind": "characters"}},
        out=whole, quiet=True,
    )  # fmt: skip
    assert json.loads(json.dumps(result.to_dict())) == read(whole)
    assert repr(result).startswith("SweepResult(3 trials in ")


@pytest.mark.slow
def test_the_printed_command_has_the_best_settings(whole: Path, text: Path) -> None:
    from tercet.settings_yaml import merge_assignments

    result = read(whole)
    verb, name, *flags = shlex.split(result["command"])[1:]
    assert (verb, name, {*flags[::2]}) == ("train", "demo", {"--set"})
    trial = load_recipe(str(whole / f"trial-{result['best']:03d}" / "recipe.yaml"))
    recipe = load_recipe("demo", merge_assignments({}, flags[1::2]))
    assert recipe.training == trial.training
    assert recipe.data == trial.data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -9), (signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.exhaustive)],
)
def test_stopped_and_repeated_it_gives_the_same_trials(
    whole: Path, text: Path, tmp_path: Path, number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    process = start_forked(*sweeping(text, out, *FLAGS), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("trial 2, to step 3"):
            break
    process.send_signal(number)
    process.communicate()
    assert process.wait() == code
    assert not (out / "sweep.json").exists()
    assert main(sweeping(text, out, *FLAGS)) == 0
    assert "trial 1, to step 3" not in capsys.readouterr().err
    for key in ("trials", "best", "verdict"):
        assert read(out)[key] == read(whole)[key]


def one_line(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main([*command]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


@pytest.mark.slow
def test_errors_are_one_line(
    whole: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert "(trials: 3 -> 4)" in one_line(capsys, *sweeping(text, whole, *OTHER))
    assert "nothing to vary; pass --vary" in one_line(capsys, *sweeping(text, out))
    assert "0.1..0.001" in one_line(capsys, *sweeping(text, out, "--vary", "training.optimizer.lr=0.1..0.001"))
    assert "--seeds: 1 is the seed" in one_line(
        capsys, *sweeping(text, out, *SPACE, "--seeds", "1,2", "--sampler", "random")
    )
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'tercet[sweep]'" in one_line(capsys, *sweeping(text, out, *SPACE))
    assert not out.exists()

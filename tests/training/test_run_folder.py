"""A folder contains one run: rejected and accepted commands, and their messages."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import matplotlib.axes
import matplotlib.image
import pytest
import torch
from tiny_runs import RUN_FILES, TEXT, figures, resume_state, tiny_recipe, weights

from tercet.checkpoint.metrics import COLUMNS, read_metrics
from tercet.config import UserError
from tercet.plots import plot_loss, save
from tercet.settings_yaml import write_yaml
from tercet.training import read_recipe, train
from tercet.training.loop.metrics_logger import MetricsLogger
from tercet.training.run_folder.folder import StartPoint, check_recipe, restore_metrics

SHORT: dict[str, Any] = {"max_steps": 2, "sample_tokens": 0}


@pytest.fixture(autouse=True)
def pictures() -> None:
    """Enable plots, which conftest.py disables."""


@pytest.mark.slow
def test_what_a_run_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_recipe(tmp_path)
    out = train(recipe, tmp_path / "deep" / "run")
    assert "12 steps" in capsys.readouterr().err
    names = {path.name for path in out.iterdir() if path.name != ".lock"}
    assert names == RUN_FILES
    assert sorted(path.name for path in (out / "samples").iterdir()) == [f"step-{n:06d}.txt" for n in (3, 6, 9, 12)]
    assert matplotlib.image.imread(out / "loss.png").shape == (600, 960, 4)
    columns = read_metrics(out / "metrics.csv")
    assert (out / "metrics.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    assert [step for step, _ in columns["train/loss"]] == list(range(1, 13))
    assert [step for step, _ in columns["val/loss"]] == [3, 6, 9, 12]
    assert columns["tokens"][-1] == (12, 12 * 16 * 8)
    assert columns["train/loss"][0][1] == pytest.approx(math.log(len(set(TEXT))), abs=0.1)
    assert json.loads((out / "last" / "card.json").read_text())["step"] == 12


@pytest.mark.slow
def test_finished_run_is_reported_and_not_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_recipe(tmp_path, **SHORT)
    out = train(recipe, tmp_path / "run", quiet=True)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    capsys.readouterr()
    train(recipe, out)
    assert (
        "is already finished: it ended at step 2; pass --more STEPS to train longer, another --out for a second run"
        in capsys.readouterr().err
    )
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.slow
def test_changed_settings_are_reported(tmp_path: Path) -> None:
    out = train(tiny_recipe(tmp_path, **SHORT), tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match=r"contains a run with other settings \(training\.seed: 1 -> 2\); pass another"):
        train(tiny_recipe(tmp_path, seed=2, **SHORT), out, quiet=True)
    other_model = {"model": {"stack": {"d_model": 32}}}
    with pytest.raises(UserError, match=r"model\.stack\.d_model: 16 -> 32"):
        train(tiny_recipe(tmp_path, other_model, **SHORT), out, quiet=True)
    many = {"model": {"stack": {"d_model": 32, "n_layers": 3, "n_heads": 4}}, "task": {"batch_size": 8}}
    with pytest.raises(UserError) as error:
        train(tiny_recipe(tmp_path, many, seed=2, **SHORT), out, quiet=True)
    assert "(training.seed: 1 -> 2; task.batch_size: 16 -> 8; model.stack.d_model: 16 -> 32; and " in str(error.value)
    assert f"more: compare {out / 'recipe.yaml'} with the output of --print-config)" in str(error.value)


@pytest.mark.slow
def test_logging_may_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = train(tiny_recipe(tmp_path, **SHORT), tmp_path / "run", quiet=True)
    train(tiny_recipe(tmp_path, {"logging": {"tracker": "tensorboard"}}, **SHORT), out)
    assert "already finished" in capsys.readouterr().err


@pytest.mark.slow
def test_changed_data_is_reported(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, **SHORT)
    out = train(recipe, tmp_path / "run", quiet=True)
    (tmp_path / "text.txt").write_text(TEXT.replace("3 times 4 is 12", "3 times 4 is 13"))
    with pytest.raises(UserError, match=r"the data has changed since the run in .*run started; pass another --out"):
        train(recipe, out, quiet=True)


def test_other_folders_and_files_are_not_changed(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, **SHORT)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(UserError, match="thesis is not empty and contains no run; pass another --out"):
        train(recipe, tmp_path / "thesis", quiet=True)
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]
    with pytest.raises(UserError, match=r"text\.txt is a file; pass a folder"):
        train(recipe, tmp_path / "text.txt", quiet=True)
    with pytest.raises(UserError, match=r"cannot create the folder .*text\.txt is not a folder; pass another --out"):
        train(recipe, tmp_path / "text.txt" / "run", quiet=True)


def test_folder_that_cannot_be_written_is_rejected_before_the_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(tmp_path, **SHORT)
    monkeypatch.setattr("tercet.storage.output_file.os.access", lambda *_: False)  # permissions do not apply to root
    monkeypatch.setattr("tercet.training.run.train.start_run", None)
    for folder in ("run", "new/run", "."):
        with pytest.raises(UserError, match=f"{re.escape(str(tmp_path))} is not writable; pass another --out"):
            train(recipe, tmp_path / folder, quiet=True)


@pytest.mark.slow
def test_its_recipe_is_read_back(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, **SHORT)
    out = train(recipe, tmp_path / "run", quiet=True)
    assert read_recipe(out) == recipe.with_vocabulary(len(set(TEXT)))


@pytest.mark.slow
def test_patience(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # At a rate of zero, neither the second nor the third validation is better than the first.
    recipe = tiny_recipe(tmp_path, optimizer={"kind": "adam", "lr": 0.0}, patience=2, validate_every=2, max_steps=30)
    out = train(recipe, tmp_path / "run", quiet=True)
    assert resume_state(out)["global_step"] == 6
    assert weights(out) == weights(out, "best")
    train(recipe, out)
    assert "already finished" in capsys.readouterr().err


@pytest.mark.slow
def test_epochs_are_counted_in_rows(tmp_path: Path) -> None:
    out = train(tiny_recipe(tmp_path, max_steps=None, max_epochs=2), tmp_path / "run", quiet=True)
    columns = figures(out)
    rows = int(0.9 * len(TEXT)) // 8 - 1
    last = columns["epoch"][-1]
    assert last[0] == math.ceil(2 * rows / 16)
    assert last[1] == pytest.approx((last[0] - 1) * 16 / rows)
    assert last[1] < 2


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"max_epochs": 3}, "set exactly one of max_steps, max_epochs and max_hours"),
        ({"max_steps": None}, "set exactly one of max_steps, max_epochs and max_hours"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"clip_norm": 0.0}, r"clip_norm=0\.0 must be above 0 and at most 1,000,000,000, or null"),
        ({"devices": 3}, "task.batch_size=16 must be divisible by the number of devices: 3"),
        ({"schedule": "noam", "warmup_steps": 0}, "the noam schedule requires warmup_steps"),
        ({"optimizer": "adamv"}, "unknown kind 'adamv'; did you mean 'adam"),
        ({"sede": 1}, "unknown key 'sede'; did you mean 'training.seed'"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, training: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tiny_recipe(tmp_path, **training)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_reported(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, accelerator="gpu", precision="auto")
    with pytest.raises(UserError, match=r"training\.devices=1 on cuda, but this machine has 0; .*accelerator=cpu"):
        train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.slow
def test_the_losses_are_drawn_on_a_logarithmic_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[str] = []
    set_scale = matplotlib.axes.Axes.set_yscale

    def record_scale(self: Any, value: Any, **kwargs: Any) -> None:
        scales.append(value)
        set_scale(self, value, **kwargs)

    monkeypatch.setattr(matplotlib.axes.Axes, "set_yscale", record_scale)
    metrics = MetricsLogger(tmp_path / "metrics.csv")
    for step in range(1, 5):
        metrics.log_metrics({"epoch": step / 2, "train/loss": 5.0 - step}, step)
    save(plot_loss(metrics.path, title="run"), tmp_path / "loss.png")
    assert scales == ["log"]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_bleu_is_plotted_next_to_the_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plots: list[tuple[list[float], list[float]]] = []
    plot = matplotlib.axes.Axes.plot

    def record_plot(self: Any, x: Any, y: Any, **kwargs: Any) -> Any:
        plots.append((list(x), list(y)))
        return plot(self, x, y, **kwargs)

    monkeypatch.setattr(matplotlib.axes.Axes, "plot", record_plot)
    metrics = MetricsLogger(tmp_path / "metrics.csv")
    for step in (1, 2, 3):
        metrics.log_metrics({"epoch": step / 2, "train/loss": 5.0 - step, "seconds": 90.0 * step}, step)
    metrics.log_metrics({"epoch": 2, "val/loss": 1.5, "val/bleu": 7.0, "seconds": 300.0}, 4)
    save(plot_loss(metrics.path, title="run"), tmp_path / "loss.png")
    assert ([5.0], [7.0]) in plots  # against minutes
    assert ([4], [1.5]) in plots
    assert matplotlib.image.imread(tmp_path / "loss.png").shape == (600, 1560, 4)


def metrics_until(out: Path, step: int) -> list[tuple[int, float]]:
    restore_metrics(out, StartPoint(step))
    return read_metrics(out / "metrics.csv")["train/loss"] if (out / "metrics.csv").exists() else []


def test_metrics_are_cut_back(tmp_path: Path) -> None:
    metrics = MetricsLogger(tmp_path / "metrics.csv")
    for step in (1, 2, 3):
        metrics.log_metrics({"train/loss": 1.0 / step}, step)
    with metrics.path.open("a") as file:
        file.write("4,0.0")  # the last line of a killed process
    assert [step for step, _ in metrics_until(tmp_path, 2)] == [1, 2]
    assert metrics_until(tmp_path, 0) == []
    metrics.log_metrics({"train/loss": 7.0}, 1)
    assert read_metrics(metrics.path)["train/loss"] == [(1, 7.0)]


def test_a_run_of_an_older_version_keeps_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,train/loss,lr\n1,2.5,0.1\n")
    MetricsLogger(path).log_metrics({"train/loss": 2.0, "val/spearman": 0.5, "lr": 0.25}, 2)
    assert path.read_text() == "step,train/loss,lr\n1,2.5,0.1\n2,2,0.25\n"
    assert read_metrics(path)["lr"] == [(1, 0.1), (2, 0.25)]


@pytest.mark.parametrize("left", [b"", b"step,ep", b"step,train/loss\n\xff\x00,\n-1,3\n"])
def test_metrics_without_a_complete_line_are_empty(tmp_path: Path, left: bytes) -> None:
    metrics = MetricsLogger(tmp_path / "metrics.csv")
    metrics.path.write_bytes(left)
    assert metrics_until(tmp_path, 0) == []
    metrics.log_metrics({"train/loss": 7.0}, 1)
    assert read_metrics(metrics.path)["train/loss"] == [(1, 7.0)]


@pytest.mark.parametrize("moment", range(6))
def test_first_process_may_start_the_run_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """The recipe and the record appear while another process checks whether a run exists."""
    recipe, out, n_calls = tiny_recipe(tmp_path, **SHORT), tmp_path / "run", 0
    out.mkdir()

    def wrap(original: Any) -> Any:
        def counted_call(*arguments: Any) -> Any:
            nonlocal n_calls
            if n_calls == moment:
                (out / "recipe.yaml").write_text(write_yaml(recipe))
                (out / "run.json").write_text("{}")
            n_calls += 1
            return original(*arguments)

        return counted_call

    for holder, name in ((Path, "exists"), (Path, "is_dir"), (os, "listdir"), (os, "scandir"), (Path, "iterdir")):
        monkeypatch.setattr(holder, name, wrap(getattr(holder, name)))
    assert check_recipe(out, recipe, None) == (recipe, recipe)

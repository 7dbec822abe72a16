"""Training on a GPU: killed and resumed, bitwise reproducible, and moved to the CPU and back."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_runs import CHECKPOINT, NO_DROPOUT, NO_SAMPLES, TINY, assert_same_run, figures

from tercet.checkpoint import load_model
from tercet.settings_yaml import write_yaml
from tercet.training import Recipe, train
from tercet.training.run_folder.choices import Resume, Until

FAMILIES = ("text", "pairs", "masked")
PROGRAM = Path(__file__).parents[1] / "training" / "train_one.py"
each_family = pytest.mark.parametrize("family", FAMILIES)


def killed_after_a_checkpoint(recipe: Recipe, out: Path) -> None:
    """Start the run in another process, and kill it after its first checkpoint."""
    file = out.with_suffix(".yaml")
    file.write_text(write_yaml(recipe))
    process = subprocess.Popen([sys.executable, str(PROGRAM), str(file), str(out)], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not any(out.glob(f"checkpoints/{CHECKPOINT}/state.ckpt")) and process.poll() is None:
        assert time.monotonic() < end, "no checkpoint within two minutes"
        time.sleep(0.002)
    process.kill()
    _, stderr = process.communicate()
    assert process.returncode == -signal.SIGKILL, stderr


@each_family
def test_killed_run_ends_bitwise_identical(family: str, tmp_path: Path, accelerator: str) -> None:
    recipe = TINY[family](tmp_path, accelerator=accelerator, exact=True, max_steps=40)
    whole = train(recipe, tmp_path / "whole", quiet=True)
    killed_after_a_checkpoint(recipe, tmp_path / "killed")
    assert_same_run(whole, train(recipe, tmp_path / "killed", quiet=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@each_family
def test_exact_run_is_reproducible_bit_for_bit(family: str, precision: str, tmp_path: Path, accelerator: str) -> None:
    recipe = TINY[family](tmp_path, accelerator=accelerator, exact=True, precision=precision)
    one, other = (train(recipe, tmp_path / name, quiet=True) for name in ("one", "other"))
    assert_same_run(one, other)


@each_family
def test_run_moves_to_the_cpu_and_back(family: str, tmp_path: Path, device: torch.device, accelerator: str) -> None:
    """Without dropout, which depends on the device, losses equal those of a run on the CPU."""
    sides = ("encoder", "decoder") if family == "pairs" else ("stack",)
    model_changes = {side: {"dropout": NO_DROPOUT} for side in sides}

    def recipe(place: str, steps: int) -> Recipe:
        changes = {"model": model_changes, "training": {"schedule": {"kind": "constant"}, "warmup_steps": 0}}
        settings = {"accelerator": place, "max_steps": steps, "best_by": "loss", **NO_SAMPLES[family]}
        return TINY[family](tmp_path, changes, **settings)

    expected = figures(train(recipe("cpu", 12), tmp_path / "cpu", quiet=True))
    out = tmp_path / "moved"
    train(recipe(accelerator, 4), out, quiet=True)
    train(recipe("cpu", 4), out, Resume(Until(8)), quiet=True)
    train(recipe(accelerator, 4), out, Resume(Until(12)), quiet=True)
    for name in ("train/loss", "val/loss"):
        found = dict(figures(out)[name])
        assert {step: found[step] for step, _ in expected[name]} == pytest.approx(dict(expected[name]), rel=2e-3)
    model = load_model(out / "last").model
    ids = torch.randint(3, 9, (2, 5))
    inputs = (ids, ids) if family == "pairs" else (ids,)
    with torch.no_grad():
        on_cpu = model(*inputs)
        there = model.to(device)(*(one.to(device) for one in inputs)).cpu()
    torch.testing.assert_close(there, on_cpu, atol=1e-4, rtol=1e-4)


@each_family
def test_compiled_run_learns_as_one_that_is_not(family: str, tmp_path: Path, cuda: torch.device) -> None:
    plain, compiled = (
        train(TINY[family](tmp_path, accelerator="gpu", compile=how), tmp_path / how, quiet=True)
        for how in ("never", "always")
    )
    ends = [figures(run)["train/loss"][-1][1] for run in (plain, compiled)]
    assert ends[1] == pytest.approx(ends[0], rel=0.2)  # dropout differs
    assert ends[1] < figures(compiled)["train/loss"][0][1]


def test_command_generates_on_the_device(tmp_path: Path, device: torch.device, accelerator: str) -> None:
    out = train(TINY["text"](tmp_path, accelerator=accelerator), tmp_path / "run", quiet=True)

    def written(place: str) -> str:
        command = [sys.executable, "-m", "tercet", "generate", str(out), "--prompt", "3 times", "--temperature", "0"]
        more = ["--max-new-tokens", "9", "--quantize", "none", "--device", place]
        return subprocess.run([*command, *more], capture_output=True, text=True, check=True, env=os.environ).stdout

    assert written(device.type) == written("cpu")
